//! The tokenizer files of llama2.c.

use super::scored_pieces::byte_pair_model;
use tokenizers::models::bpe::Vocab;
use tokenizers::{DecoderWrapper, NormalizerWrapper};

/// A piece and its score.
pub(crate) type Piece = (String, f32);

/// Reads the format: the length of the longest piece (i32), then for each token its score (f32), length
/// (i32) and bytes. Tokens 0, 1 and 2 are unknown, BOS and EOS; 3 to 258 are the bytes.
pub(crate) fn read_pieces(bytes: &[u8]) -> Result<Vec<Piece>, String> {
    fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (head, tail) = bytes.split_first_chunk()?;
        *bytes = tail;
        Some(*head)
    }
    let mut rest = bytes;
    let mut pieces = Vec::new();
    take::<4>(&mut rest).ok_or("it is shorter than its header")?;
    while !rest.is_empty() {
        let truncated = || format!("it ends inside token {}", pieces.len());
        let score = f32::from_le_bytes(take(&mut rest).ok_or_else(truncated)?);
        let length = i32::from_le_bytes(take(&mut rest).ok_or_else(truncated)?);
        let length = usize::try_from(length)
            .map_err(|_| format!("token {} has length {length}", pieces.len()))?;
        let (piece, tail) = rest.split_at_checked(length).ok_or_else(truncated)?;
        rest = tail;
        let piece = std::str::from_utf8(piece)
            .map_err(|_| format!("token {} is not valid UTF-8", pieces.len()))?;
        pieces.push((piece.to_owned(), score));
    }
    if pieces.len() <= FIRST_PIECE {
        return Err(format!("it has {} tokens, fewer than the 256 bytes need", pieces.len()));
    }
    Ok(pieces)
}

/// The first token that is neither a control token nor a byte.
pub(crate) const FIRST_PIECE: usize = 259;

/// Builds a tokenizer that merges pieces in the order of their scores, as llama2.c's encoder does.
pub(super) fn byte_pair_tokenizer(pieces: &[Piece]) -> tokenizers::Result<tokenizers::Tokenizer> {
    let vocabulary =
        pieces.iter().zip(0..).map(|((piece, _), id)| (piece.clone(), id)).collect::<Vocab>();
    let scored = pieces[FIRST_PIECE..].iter().map(|(piece, score)| (&**piece, *score));
    let mut tokenizer =
        tokenizers::Tokenizer::new(byte_pair_model(vocabulary, scored, Some(&pieces[0].0))?);
    // A text starts with a space, as in sentencepiece.
    let prepend = tokenizers::normalizers::Prepend::new(" ".into());
    tokenizer.with_normalizer(Some(NormalizerWrapper::from(prepend)))?;
    let decoders = vec![
        DecoderWrapper::from(tokenizers::decoders::byte_fallback::ByteFallback::new()),
        DecoderWrapper::from(tokenizers::decoders::fuse::Fuse::new()),
        DecoderWrapper::from(tokenizers::decoders::strip::Strip::new(' ', 1, 0)),
    ];
    let decoder = tokenizers::decoders::sequence::Sequence::new(decoders);
    tokenizer.with_decoder(Some(DecoderWrapper::from(decoder)));
    Ok(tokenizer)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file with a few pieces.
    pub(in crate::tokenizer) fn pieces() -> Vec<u8> {
        let mut bytes = 7_i32.to_le_bytes().to_vec();
        let mut push = |piece: &str, score: f32| {
            bytes.extend(score.to_le_bytes());
            bytes.extend((piece.len() as i32).to_le_bytes());
            bytes.extend(piece.as_bytes());
        };
        for control in ["<unk>", "\n<s>\n", "\n</s>\n"] {
            push(control, 0.0);
        }
        for byte in 0..256 {
            push(&format!("<0x{byte:02X}>"), 0.0);
        }
        // 259 " a", 260 "b", 261 "ab", 262 " ", 263 "a"
        for (rank, piece) in [" a", "b", "ab", " ", "a"].into_iter().enumerate() {
            push(piece, -(rank as f32));
        }
        bytes
    }

    #[test]
    fn pieces_merge_by_score_and_unknown_characters_become_bytes() {
        let tokenizer = read_pieces(&pieces())
            .and_then(|pieces| byte_pair_tokenizer(&pieces).map_err(|error| error.to_string()));
        let encode = |text| {
            let tokenizer = tokenizer.as_ref().map_err(Clone::clone)?;
            let encoding = tokenizer.encode(text, false).map_err(|error| error.to_string())?;
            Ok::<_, String>(encoding.get_ids().to_vec())
        };
        // " ab": " a" merges before "ab" could.
        assert_eq!(encode("ab"), Ok(vec![259, 260]));
        assert_eq!(encode("bab"), Ok(vec![262, 260, 261]));
        assert_eq!(encode("aé"), Ok(vec![259, 3 + 0xC3, 3 + 0xA9]));
    }

    #[test]
    fn broken_tokenizer_files_are_errors() {
        let whole = pieces();
        for (bytes, word) in [
            (&whole[..2], "shorter than its header"),
            (&whole[..105], "ends inside token"),
            (&whole[..4], "fewer than the 256 bytes"),
        ] {
            assert!(read_pieces(bytes).is_err_and(|reason| reason.contains(word)), "{word}");
        }
        let mut negative = whole.clone();
        negative[8..12].copy_from_slice(&(-1_i32).to_le_bytes());
        assert!(read_pieces(&negative).is_err_and(|reason| reason.contains("length -1")));
    }
}
