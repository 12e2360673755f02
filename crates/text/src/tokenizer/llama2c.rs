//! The tokenizer files of llama2.c.

use super::TokenizerError;
use super::scored_pieces::byte_pair_model;
use std::path::{Path, PathBuf};
use tokenizers::models::bpe::Vocab;
use tokenizers::{DecoderWrapper, NormalizerWrapper};

/// A piece and its score.
pub(crate) type Piece = (String, f32);

/// Returns the tokenizers in a folder, in the order of their names.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_tokenizer = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("tok") && name.ends_with(".bin"))
    };
    let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).filter(is_tokenizer).collect();
    files.sort();
    files
}

/// Lists files with the numbers of their tokens.
pub(super) fn sizes(files: &[(PathBuf, usize)]) -> String {
    let sizes = files.iter().map(|(file, tokens)| format!("{} has {tokens}", file.display()));
    sizes.collect::<Vec<_>>().join(", ")
}

/// Reads the pieces of a file.
pub(crate) fn read(file: &Path) -> Result<Vec<Piece>, TokenizerError> {
    let broken = |reason| TokenizerError::Broken { file: file.to_owned(), reason };
    let bytes = std::fs::read(file).map_err(|error| broken(error.to_string()))?;
    read_pieces(&bytes).map_err(broken)
}

/// Reads the format: the length of the longest piece (i32), then for each token its score (f32),
/// length (i32) and bytes. Tokens 0, 1 and 2 are unknown, BOS and EOS. Next come the 256 bytes,
/// unless the vocabulary has none.
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
    if pieces.len() <= CONTROL_TOKENS {
        return Err(format!("it has {} tokens, but its first three have no text", pieces.len()));
    }
    Ok(pieces)
}

/// The number of control tokens, which come first: unknown, BOS and EOS.
pub(crate) const CONTROL_TOKENS: usize = 3;

/// Builds a tokenizer that merges pieces in the order of their scores, as llama2.c's encoder does.
/// A character that is no piece is encoded as its bytes, or as the unknown token if these are not
/// pieces.
pub(super) fn byte_pair_tokenizer(pieces: &[Piece]) -> tokenizers::Result<tokenizers::Tokenizer> {
    let vocabulary =
        pieces.iter().zip(0..).map(|((piece, _), id)| (piece.clone(), id)).collect::<Vocab>();
    let scored = pieces[CONTROL_TOKENS..].iter().map(|(piece, score)| (&**piece, *score));
    let mut tokenizer =
        tokenizers::Tokenizer::new(byte_pair_model(vocabulary, scored, Some(&pieces[0].0))?);
    let mut decoders = vec![
        DecoderWrapper::from(tokenizers::decoders::byte_fallback::ByteFallback::new()),
        DecoderWrapper::from(tokenizers::decoders::fuse::Fuse::new()),
    ];
    // A text starts with a space, as in sentencepiece, if the vocabulary has one.
    if tokenizer.token_to_id(" ").is_some() {
        let prepend = tokenizers::normalizers::Prepend::new(" ".into());
        tokenizer.with_normalizer(Some(NormalizerWrapper::from(prepend)))?;
        let strip = tokenizers::decoders::strip::Strip::new(' ', 1, 0);
        decoders.push(DecoderWrapper::from(strip));
    }
    let decoder = tokenizers::decoders::sequence::Sequence::new(decoders);
    tokenizer.with_decoder(Some(DecoderWrapper::from(decoder)));
    Ok(tokenizer)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tokenizer::{Tokenizer, TokenizerError};

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

    /// Returns the tokenizer of [`pieces`].
    pub(crate) fn example() -> Result<Tokenizer, TokenizerError> {
        let pieces = read_pieces(&pieces());
        let broken = |reason| TokenizerError::Broken { file: PathBuf::new(), reason };
        Tokenizer::from_llama2c(PathBuf::new(), &pieces.map_err(broken)?)
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
            (&whole[..4], "it has 0 tokens"),
        ] {
            assert!(read_pieces(bytes).is_err_and(|reason| reason.contains(word)), "{word}");
        }
        let mut negative = whole.clone();
        negative[8..12].copy_from_slice(&(-1_i32).to_le_bytes());
        assert!(read_pieces(&negative).is_err_and(|reason| reason.contains("length -1")));
    }
}
