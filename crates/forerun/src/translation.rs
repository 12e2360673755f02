//! Translation between the tokens of a target and of a drafter with another vocabulary, by their
//! text.

use forerun_core::TokenId;
use forerun_draft::VocabTranslator;
use forerun_text::Tokenizer;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The number of known tokens that are decoded together with the next ones, for their context.
const WINDOW: usize = 8;
/// The number of bytes at the end of a text that are encoded again when the text grows. It is
/// enough for the tokens at the end to be those of the whole text.
const OVERLAP: usize = 96;
/// The number of bytes after a cut with tokens that may differ from those of the whole text.
const UNSETTLED: usize = 32;

/// Translates tokens by decoding with one tokenizer and encoding with the other.
pub(crate) struct Translation {
    target: Arc<Tokenizer>,
    drafter: Arc<Tokenizer>,
    /// The vocabulary size of the target's model. Its tokenizer may have more tokens.
    target_size: usize,
    /// The target's end-of-sequence token.
    target_end: Option<TokenId>,
    /// The drafter's end-of-sequence tokens.
    drafter_ends: Vec<TokenId>,
    /// For every drafter token, the longest target token that is a prefix of its text. Computed
    /// when first needed.
    counterparts: OnceLock<Vec<Option<TokenId>>>,
}

/// The text of a sequence, with its tokens for the target and for the drafter.
#[derive(Default)]
pub(crate) struct Progress {
    /// The target's tokens, as far as their text is complete.
    target_tokens: Vec<TokenId>,
    text: String,
    /// The drafter's tokens of `text`.
    drafter_tokens: Vec<TokenId>,
    /// The byte of `text` at which each drafter token begins.
    starts: Vec<usize>,
}

impl Translation {
    pub(crate) fn new(
        (target, target_ends): (Arc<Tokenizer>, &[TokenId]),
        target_size: usize,
        (drafter, drafter_ends): (Arc<Tokenizer>, &[TokenId]),
    ) -> Self {
        Self {
            target,
            drafter,
            target_size,
            target_end: target_ends.first().copied(),
            drafter_ends: drafter_ends.to_vec(),
            counterparts: OnceLock::new(),
        }
    }

    /// Decodes the target's `tokens` as far as `progress` does not have them. Returns whether the
    /// text ends with a whole character; if not, `progress` is unchanged.
    fn decode_new(&self, progress: &mut Progress, tokens: &[TokenId]) -> bool {
        if !tokens.starts_with(&progress.target_tokens) {
            *progress = Progress::default();
        }
        let known = progress.target_tokens.len();
        let window = known.saturating_sub(WINDOW);
        let (before, all) =
            (self.target.decode(&tokens[window..known]), self.target.decode(&tokens[window..]));
        match all.strip_prefix(&before) {
            // The last character is incomplete. Its text comes with the rest of its bytes.
            Some(new) if new.ends_with(char::REPLACEMENT_CHARACTER) => return false,
            Some(new) => progress.text.push_str(new),
            None => progress.text = self.target.decode(tokens),
        }
        progress.target_tokens = tokens.to_vec();
        true
    }

    /// Encodes the end of the text again for the drafter, from where its tokens may have changed.
    fn encode_end(&self, progress: &mut Progress) {
        let Progress { text, drafter_tokens, starts, .. } = progress;
        let text = without_final_spaces(text);
        let unchanged = starts.last().map_or(0, |&last| cut_before(text, last));
        let tail = self.drafter.encode_from(text, unchanged).unwrap_or_default();
        // The new tokens replace the old ones from a boundary that both have.
        let settled = |&(_, start): &(TokenId, usize)| {
            unchanged == 0 || start >= unchanged + UNSETTLED && starts.binary_search(&start).is_ok()
        };
        let tail = match tail.iter().position(settled) {
            Some(first) => tail[first..].to_vec(),
            None => self.drafter.encode_from(text, 0).unwrap_or_default(),
        };
        let first = tail.first().map_or(0, |&(_, start)| start);
        let kept = starts.partition_point(|&start| start < first);
        drafter_tokens.truncate(kept);
        starts.truncate(kept);
        drafter_tokens.extend(tail.iter().map(|&(token, _)| token));
        starts.extend(tail.iter().map(|&(_, start)| start));
    }

    /// Returns, for every drafter token, the longest target token that is a prefix of its text.
    fn find_counterparts(&self) -> Vec<Option<TokenId>> {
        let pieces = |tokenizer: &Tokenizer| -> Vec<String> {
            let tokens = 0..tokenizer.vocab_size() as TokenId;
            tokens.map(|token| tokenizer.piece(token)).collect()
        };
        let target = pieces(&self.target).into_iter().zip(0..);
        let target: HashMap<String, TokenId> = target.collect();
        let pair = |piece: String| {
            let ends = (1..=piece.len()).rev().filter(|&end| piece.is_char_boundary(end));
            ends.filter_map(|end| target.get(&piece[..end])).next().copied()
        };
        pieces(&self.drafter).into_iter().map(pair).collect()
    }
}

impl VocabTranslator for Translation {
    type Progress = Progress;

    fn to_drafter<'a>(&self, progress: &'a mut Progress, tokens: &[TokenId]) -> &'a [TokenId] {
        if !self.decode_new(progress, tokens) {
            return &[];
        }
        self.encode_end(progress);
        &progress.drafter_tokens
    }

    fn to_target(&self, progress: &Progress, drafted: &[TokenId]) -> Vec<TokenId> {
        let (words, end) = match drafted.split_last() {
            Some((last, words)) if self.is_end(*last) => (words, self.target_end),
            _ => (drafted, None),
        };
        // The text of the draft, decoded as a continuation of the sequence.
        let start_of_known = progress.drafter_tokens.len().saturating_sub(WINDOW);
        let known = &progress.drafter_tokens[start_of_known..];
        let (before, all) =
            (self.drafter.decode(known), self.drafter.decode(&[known, words].concat()));
        let Some(new) = all.strip_prefix(&before) else { return Vec::new() };
        let new = new.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let whole = without_final_spaces(&progress.text).to_owned() + new;
        if !whole.starts_with(&progress.text) {
            return Vec::new();
        }
        let end_of_text = progress.text.len();
        let tokens = self.target.encode_from(&whole, cut_before(&whole, end_of_text));
        let tokens = tokens.unwrap_or_default().into_iter();
        let mut drafted = tokens.skip_while(|&(_, start)| start < end_of_text).peekable();
        // Otherwise a token spans committed and drafted text.
        let continues = drafted.peek().is_none_or(|&(_, start)| start == end_of_text);
        let drafted = drafted.map(|(token, _)| token);
        let in_vocabulary = |token: &TokenId| (*token as usize) < self.target_size;
        if continues { drafted.chain(end).take_while(in_vocabulary).collect() } else { Vec::new() }
    }

    fn counterpart(&self, token: TokenId) -> Option<TokenId> {
        let counterparts = self.counterparts.get_or_init(|| self.find_counterparts());
        counterparts.get(token as usize).copied().flatten()
    }

    fn is_end(&self, token: TokenId) -> bool {
        self.drafter_ends.contains(&token)
    }
}

/// Returns a text without spaces at the end, as the drafter gets it. If words begin with their
/// space, a space at the end would keep the drafter from predicting a word.
fn without_final_spaces(text: &str) -> &str {
    text.trim_end_matches(' ')
}

/// Returns the beginning of a character about `OVERLAP` bytes before `end`, or 0.
fn cut_before(text: &str, end: usize) -> usize {
    let at = end.saturating_sub(OVERLAP);
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Builds a byte-pair tokenizer that merges the prefixes of the given words, shortest first.
    fn tokenizer(words: &[&str]) -> Arc<Tokenizer> {
        let mut vocabulary: HashMap<String, u32> = HashMap::new();
        let mut add = |piece: &str| {
            let next = vocabulary.len() as u32;
            vocabulary.entry(piece.to_owned()).or_insert(next);
        };
        (b' '..=b'~').for_each(|byte| add(&char::from(byte).to_string()));
        let mut merges = Vec::new();
        for word in words {
            for end in 2..=word.len() {
                add(&word[..end]);
                merges.push((word[..end - 1].to_owned(), word[end - 1..end].to_owned()));
            }
        }
        let json = serde_json::json!({
            "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
        Arc::new(Tokenizer::from_checkpoint(folder.path()).unwrap())
    }

    fn text(count: usize) -> String {
        let words = [" the", " then", " cat", " a", " thing", ",", " catnip", ".", " is"];
        (0..count).map(|at| words[(at * at * 5 + at * 3) % words.len()]).collect()
    }

    /// Returns a target with spaces at the end of tokens, and a drafter with spaces at the
    /// beginning, so that few token boundaries agree.
    fn translation() -> Translation {
        let target = tokenizer(&["the ", "then ", "cat", "is ", "a ", "th"]);
        let drafter = tokenizer(&[" the", " cat", " thing", " is", "nip"]);
        Translation::new((target, &[7]), usize::MAX, (drafter, &[9]))
    }

    #[test]
    fn a_growing_text_has_the_drafter_tokens_of_the_whole_text() {
        let (translation, mut progress) = (translation(), Progress::default());
        let tokens = translation.target.encode(&text(200)).unwrap();
        // Token by token, then back to a shorter text, and forward again.
        for len in (0..tokens.len()).chain([90, 30, tokens.len()]) {
            let own = translation.to_drafter(&mut progress, &tokens[..len]).to_vec();
            let text = translation.target.decode(&tokens[..len]);
            let expected = translation.drafter.encode(without_final_spaces(&text)).unwrap();
            assert_eq!(own, expected, "{text:?}");
        }
    }

    #[test]
    fn a_draft_becomes_the_targets_tokens_of_its_text() {
        let (translation, mut progress) = (translation(), Progress::default());
        let text = text(120);
        let tokens = translation.target.encode(&text).unwrap();
        let all = translation.drafter.encode(&text).unwrap();
        let mut translated = 0;
        for cut in 1..tokens.len() {
            let own = translation.to_drafter(&mut progress, &tokens[..cut]).to_vec();
            if !all.starts_with(&own) {
                continue;
            }
            let drafted = &all[own.len()..all.len().min(own.len() + 6)];
            let draft = translation.to_target(&progress, drafted);
            // The last token may be part of a longer one.
            let certain = draft.len().saturating_sub(1);
            assert_eq!(draft[..certain], tokens[cut..cut + certain], "after {cut}");
            translated += certain;
        }
        assert!(translated > tokens.len(), "{translated}");
        // End-of-sequence tokens are translated, too.
        let cat = translation.target.encode("the cat").unwrap();
        translation.to_drafter(&mut progress, &cat);
        assert_eq!(translation.to_target(&progress, &[9]).last(), Some(&7));
        // A token beyond the vocabulary of the target's model ends the draft.
        let nip = translation.drafter.encode("nip").unwrap();
        let draft = translation.to_target(&progress, &nip);
        let largest = *draft.iter().max().unwrap();
        let first = draft.iter().position(|&token| token == largest).unwrap();
        let small = Translation { target_size: largest as usize, ..translation };
        assert_eq!(small.to_target(&progress, &nip), draft[..first]);
    }

    #[test]
    fn counterparts_begin_with_the_same_text() {
        let translation = translation();
        let id = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text).unwrap()[0];
        let nip = id(&translation.drafter, "nip");
        assert_eq!(translation.counterpart(nip), Some(id(&translation.target, "n")));
        let the = id(&translation.drafter, " the");
        assert_eq!(translation.counterpart(the), Some(id(&translation.target, " ")));
    }
}
