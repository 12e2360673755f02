//! BPE with scores instead of merges, as sentencepiece has it: of all adjacent pairs that form a
//! piece, the one with the highest score is merged first.

use tokenizers::models::bpe::{BPE, Vocab};

/// Creates the model of a vocabulary in which `scored` pieces are merged from others. Characters
/// that are not in the vocabulary become the tokens of their bytes, or else `unknown`.
pub(super) fn byte_pair_model<'a>(
    vocabulary: Vocab,
    scored: impl Iterator<Item = (&'a str, f32)>,
    unknown: Option<&str>,
) -> tokenizers::Result<BPE> {
    let mut merges = Vec::new();
    for (piece, score) in scored {
        let cuts = piece.char_indices().skip(1).map(|(cut, _)| piece.split_at(cut));
        let mut pairs: Vec<_> = cuts
            .filter_map(|(left, right)| {
                Some(((*vocabulary.get(left)?, *vocabulary.get(right)?), left, right))
            })
            .collect();
        // The order of transformers' conversion, which decides between pairs of the same piece.
        pairs.sort_by_key(|(ids, ..)| *ids);
        merges.extend(pairs.into_iter().map(|(_, left, right)| (score, left, right)));
    }
    merges.sort_by(|first, second| second.0.total_cmp(&first.0));
    let merges =
        merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect();
    let builder = BPE::builder().vocab_and_merges(vocabulary, merges).byte_fallback(true);
    match unknown {
        Some(unknown) => builder.unk_token(unknown.to_owned()).fuse_unk(true).build(),
        None => builder.build(),
    }
}
