//! The tokenizer within a GGUF file, as llama.cpp stores it (`tokenizer.ggml.*`): the kinds `gpt2`
//! (BPE on bytes, with merges), `llama` (BPE with scores, as sentencepiece has it), `gemma4` (BPE on
//! characters, with merges) and `bert` (WordPiece in lower case).

use super::TokenizerError;
use super::scored_pieces::byte_pair_model;
use super::splitting::Splitting;
use forerun_core::TokenId;
use forerun_formats::checkpoint::gguf::GgufMetadata;
use forerun_formats::known_ends;
use std::collections::{HashMap, HashSet};
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::{NFC, Prepend, Sequence as Normalizers};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
};

/// The types of tokens (`tokenizer.ggml.token_type`) that differ from ordinary ones.
pub(crate) mod token_type {
    /// An ordinary token.
    pub(crate) const NORMAL: i32 = 1;
    /// The token of unknown text.
    pub(crate) const UNKNOWN: i32 = 2;
    /// A control token, which has no text.
    pub(crate) const CONTROL: i32 = 3;
    /// An added token with a text.
    pub(crate) const USER_DEFINED: i32 = 4;
    /// An id without a token.
    pub(crate) const UNUSED: i32 = 5;
    /// The token of a byte.
    pub(crate) const BYTE: i32 = 6;
}

/// The name of the tokenizer's kind.
const MODEL: &str = "tokenizer.ggml.model";
/// The name of the rule of splitting text into words.
const PRE: &str = "tokenizer.ggml.pre";
/// A whole `tokenizer.json`.
pub(crate) const JSON: &str = "tokenizer.huggingface.json";

/// How sentencepiece represents a space.
pub(crate) const SPACE: &str = "▁";

/// A tokenizer, and what the tokenizers library does not know about it.
pub(super) struct GgufTokenizer {
    pub(super) inner: tokenizers::Tokenizer,
    /// The token to put in front of every text.
    pub(super) bos: Option<TokenId>,
    /// The token to add to the end of every text.
    pub(super) eos: Option<TokenId>,
    /// Tokens without a text.
    pub(super) control: HashSet<TokenId>,
    /// Tokens that no text is encoded as, with those of the same text that it is encoded as.
    pub(super) same_text: HashMap<TokenId, TokenId>,
}

/// Returns whether a file has a tokenizer. Files of models that other files complete have none.
pub(crate) fn has_tokenizer(metadata: GgufMetadata<'_>) -> bool {
    let named =
        || metadata.text(MODEL).is_ok_and(|model| matches!(model, Some("none" | "no_vocab")));
    metadata.contains(JSON) || metadata.contains(MODEL) && !named()
}

/// Builds the tokenizer that the metadata describe.
pub(super) fn read(metadata: GgufMetadata<'_>) -> Result<GgufTokenizer, TokenizerError> {
    let tokens = Tokens::read(metadata)?;
    let model = metadata.text(MODEL)?.unwrap_or_default();
    let mut inner = match model {
        "gpt2" => byte_level(metadata, &tokens)?,
        "llama" => sentencepiece(metadata, &tokens)?,
        "gemma4" => merged_pieces(metadata, &tokens)?,
        "bert" => word_pieces(metadata, &tokens)?,
        _ => {
            return Err(TokenizerError::Unsupported {
                file: metadata.path().to_owned(),
                option: MODEL,
                found: model.to_owned(),
                supported: "gpt2, llama, gemma4, bert".to_owned(),
            });
        }
    };
    let control = tokens.all.iter().filter(|token| token.is_control());
    let user_defined = tokens.encoded().filter(|token| token.kind == token_type::USER_DEFINED);
    let added =
        |token: &Token<'_>, special| AddedToken::from(token.text, special).normalized(false);
    inner
        .add_special_tokens(
            tokens.encoded().filter(|token| token.is_control()).map(|token| added(token, true)),
        )
        .and_then(|_| inner.add_tokens(user_defined.map(|token| added(token, false))))
        .map_err(|error| broken(metadata, error.to_string()))?;
    let control = control.map(|token| token.id).collect();
    let same_text = tokens.same_text();
    Ok(GgufTokenizer { inner, bos: bos(metadata)?, eos: eos(metadata)?, control, same_text })
}

/// Returns the token to put in front of every text.
pub(super) fn bos(metadata: GgufMetadata<'_>) -> Result<Option<TokenId>, TokenizerError> {
    let model = metadata.text(MODEL)?;
    if model == Some("bert") {
        // Its `[CLS]`, with llama.cpp's default.
        return Ok(metadata.u32("tokenizer.ggml.bos_token_id")?.or(Some(101)));
    }
    let is_scored = model == Some("llama");
    let splitting = Splitting::named(metadata.text(PRE)?);
    let by_default = is_scored || splitting.is_some_and(|splitting| splitting.adds_bos);
    let stored = metadata.bool("tokenizer.ggml.add_bos_token")?;
    // As in llama.cpp: files of Gemma 4 may say the contrary.
    let adds_bos = model == Some("gemma4") || stored.unwrap_or(by_default);
    let id = metadata.u32("tokenizer.ggml.bos_token_id")?;
    Ok(id.or(is_scored.then_some(1)).filter(|_| adds_bos))
}

/// Returns the tokens before prefix, suffix and middle of a text with a gap. Older files have other
/// names for them.
pub(super) fn infill(metadata: GgufMetadata<'_>) -> Result<[Option<TokenId>; 3], TokenizerError> {
    let mut found = [None; 3];
    let names = [["fim_pre", "prefix"], ["fim_suf", "suffix"], ["fim_mid", "middle"]];
    for (found, [name, older]) in found.iter_mut().zip(names) {
        let token = |name| metadata.u32(&format!("tokenizer.ggml.{name}_token_id"));
        *found = token(name)?.or(token(older)?);
    }
    Ok(found)
}

/// Returns the token to add to the end of every text.
fn eos(metadata: GgufMetadata<'_>) -> Result<Option<TokenId>, TokenizerError> {
    if metadata.text(MODEL)? == Some("bert") {
        // Its `[SEP]`. The key is misspelt.
        return Ok(metadata.u32("tokenizer.ggml.seperator_token_id")?.or(Some(102)));
    }
    let adds_eos = metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    Ok(metadata.u32("tokenizer.ggml.eos_token_id")?.filter(|_| adds_eos))
}

fn broken(metadata: GgufMetadata<'_>, reason: impl Into<String>) -> TokenizerError {
    TokenizerError::Broken { file: metadata.path().to_owned(), reason: reason.into() }
}

/// A token that is in use.
struct Token<'a> {
    id: TokenId,
    text: &'a str,
    kind: i32,
    score: f32,
}

impl Token<'_> {
    fn is_control(&self) -> bool {
        matches!(self.kind, token_type::CONTROL | token_type::UNKNOWN)
    }

    /// Returns whether the token is found in a text before that is split into words.
    fn is_found_first(&self) -> bool {
        self.is_control() || self.kind == token_type::USER_DEFINED
    }
}

/// The tokens of a vocabulary. Ids that are padding only have none.
struct Tokens<'a> {
    all: Vec<Token<'a>>,
    /// The tokens that texts are encoded as. Of several tokens with the same text, this is the last
    /// one, as in llama.cpp, but control tokens and added tokens come first.
    by_text: HashMap<&'a str, TokenId>,
}

impl<'a> Tokens<'a> {
    fn read(metadata: GgufMetadata<'a>) -> Result<Self, TokenizerError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let Some(texts) = metadata.strings(TOKENS)? else {
            return Err(broken(metadata, format!("it has no {TOKENS}")));
        };
        let texts: Vec<&str> = texts.collect();
        let types = metadata.i32s("tokenizer.ggml.token_type")?.map(Iterator::collect);
        let scores = metadata.f32s("tokenizer.ggml.scores")?.map(Iterator::collect);
        let mut types: Vec<i32> = match types {
            Some(types) => types,
            None => Self::types_by_ids(metadata, texts.len())?,
        };
        let scores: Vec<f32> = scores.unwrap_or_else(|| vec![0.0; texts.len()]);
        for (what, found) in [("types", types.len()), ("scores", scores.len())] {
            if found != texts.len() {
                let reason = format!("it has {} tokens, but {found} {what} of tokens", texts.len());
                return Err(broken(metadata, reason));
            }
        }
        // As in llama.cpp: many files do not mark the ends of turns.
        let typed = (0..).zip(texts.iter().zip(&types));
        for end in
            known_ends(typed.map(|(id, (text, kind))| (id, *text, *kind == token_type::CONTROL)))
        {
            types[end as usize] = token_type::CONTROL;
        }
        let tokens = (0..).zip(texts).zip(types.into_iter().zip(scores));
        let tokens = tokens.map(|((id, text), (kind, score))| Token { id, text, kind, score });
        let is_used =
            |token: &Token<'_>| token.kind != token_type::UNUSED && !token.text.is_empty();
        let all: Vec<Token<'a>> = tokens.filter(is_used).collect();
        let mut by_text = HashMap::new();
        let (first, others): (Vec<_>, Vec<_>) =
            all.iter().partition(|token| token.is_found_first());
        by_text.extend(others.into_iter().chain(first).map(|token| (token.text, token.id)));
        Ok(Self { all, by_text })
    }

    /// Returns the types of tokens in a file without them: those that begin and end texts are
    /// control tokens.
    fn types_by_ids(metadata: GgufMetadata<'_>, tokens: usize) -> Result<Vec<i32>, TokenizerError> {
        let mut types = vec![token_type::NORMAL; tokens];
        for name in ["bos", "eos", "eot", "eom"] {
            let id = metadata.u32(&format!("tokenizer.ggml.{name}_token_id"))?;
            if let Some(kind) = id.and_then(|id| types.get_mut(id as usize)) {
                *kind = token_type::CONTROL;
            }
        }
        Ok(types)
    }

    /// Returns the tokens that texts are encoded as.
    fn encoded(&self) -> impl Iterator<Item = &Token<'a>> {
        self.all.iter().filter(|token| self.by_text[token.text] == token.id)
    }

    /// Returns the other tokens, with those of the same text that texts are encoded as.
    fn same_text(&self) -> HashMap<TokenId, TokenId> {
        let pairs = self.all.iter().map(|token| (token.id, self.by_text[token.text]));
        pairs.filter(|(id, encoded)| id != encoded).collect()
    }

    /// Returns the tokens by their texts.
    fn vocabulary(&self) -> Vocab {
        self.by_text.iter().map(|(text, id)| ((*text).to_owned(), *id)).collect()
    }

    /// Returns the text of a token.
    fn text(&self, id: TokenId) -> Option<&'a str> {
        self.all.iter().find(|token| token.id == id).map(|token| token.text)
    }
}

/// Returns the pairs of pieces that are merged, in their order.
fn merges(metadata: GgufMetadata<'_>) -> Result<Vec<(String, String)>, TokenizerError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let Some(merges) = metadata.strings(MERGES)? else {
        return Err(broken(metadata, format!("it has no {MERGES}")));
    };
    let pair = |merge: &str| {
        let (first, second) = merge.split_once(' ')?;
        Some((first.to_owned(), second.to_owned()))
    };
    let pairs = merges.map(|merge| {
        pair(merge).ok_or_else(|| broken(metadata, format!("its merge {merge:?} is no pair")))
    });
    pairs.collect()
}

/// Builds a tokenizer of the kind `gpt2`.
fn byte_level(
    metadata: GgufMetadata<'_>,
    tokens: &Tokens<'_>,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let name = metadata.text(PRE)?;
    let splitting = Splitting::named(name).ok_or_else(|| TokenizerError::Unsupported {
        file: metadata.path().to_owned(),
        option: PRE,
        found: name.unwrap_or_default().to_owned(),
        supported: Splitting::all_names(),
    })?;
    let merges = merges(metadata)?;
    let vocabulary = tokens.vocabulary();
    let build = || -> tokenizers::Result<tokenizers::Tokenizer> {
        let model = BPE::builder()
            .vocab_and_merges(vocabulary, merges)
            .ignore_merges(splitting.ignore_merges)
            .build()?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        if splitting.nfc {
            tokenizer.with_normalizer(Some(NFC))?;
        }
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for regex in splitting.regexes {
            let pattern = SplitPattern::Regex((*regex).to_owned());
            steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
        }
        let bytes = ByteLevel::new(false, false, false);
        steps.push(bytes.into());
        tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(steps)));
        tokenizer.with_decoder(Some(bytes));
        Ok(tokenizer)
    };
    build().map_err(|error| broken(metadata, error.to_string()))
}

/// Builds a tokenizer of the kind `gemma4`: of the characters of the whole text, with spaces as
/// sentencepiece has them.
fn merged_pieces(
    metadata: GgufMetadata<'_>,
    tokens: &Tokens<'_>,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let unknown = metadata.u32("tokenizer.ggml.unknown_token_id")?.and_then(|id| tokens.text(id));
    let (vocabulary, merges) = (tokens.vocabulary(), merges(metadata)?);
    let build = || -> tokenizers::Result<tokenizers::Tokenizer> {
        let builder = BPE::builder().vocab_and_merges(vocabulary, merges).byte_fallback(true);
        let model = match unknown {
            Some(unknown) => builder.unk_token(unknown.to_owned()).fuse_unk(true).build()?,
            None => builder.build()?,
        };
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        tokenizer.with_normalizer(Some(Replace::new(" ", SPACE)?))?;
        let decoders: Vec<DecoderWrapper> =
            vec![Replace::new(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
        tokenizer.with_decoder(Some(Decoders::new(decoders)));
        Ok(tokenizer)
    };
    build().map_err(|error| broken(metadata, error.to_string()))
}

/// Builds a tokenizer of the kind `bert`. Pieces that begin a word are stored with a space, those
/// within a word as they are, and special tokens in brackets.
fn word_pieces(
    metadata: GgufMetadata<'_>,
    tokens: &Tokens<'_>,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    const WITHIN: &str = "##";
    let piece = |text: &str| match text.strip_prefix(SPACE) {
        Some(first) => first.to_owned(),
        None if text.starts_with('[') && text.ends_with(']') => text.to_owned(),
        None => format!("{WITHIN}{text}"),
    };
    let vocabulary: Vocab = tokens.all.iter().map(|token| (piece(token.text), token.id)).collect();
    let unknown = metadata.u32("tokenizer.ggml.unknown_token_id")?.and_then(|id| tokens.text(id));
    let build = || -> tokenizers::Result<tokenizers::Tokenizer> {
        let model = WordPiece::builder()
            .vocab(vocabulary)
            .unk_token(unknown.unwrap_or("[UNK]").to_owned())
            .build()?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
        tokenizer.with_normalizer(Some(BertNormalizer::default()))?;
        tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
        tokenizer.with_decoder(Some(WordPieceDecoder::default()));
        Ok(tokenizer)
    };
    build().map_err(|error| broken(metadata, error.to_string()))
}

/// Builds a tokenizer of the kind `llama`.
fn sentencepiece(
    metadata: GgufMetadata<'_>,
    tokens: &Tokens<'_>,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let starts_with_space = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let removes_spaces = metadata.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false);
    let unknown = metadata.u32("tokenizer.ggml.unknown_token_id")?.unwrap_or(0);
    let unknown = tokens.text(unknown);
    let vocabulary = tokens.vocabulary();
    let ordinary = tokens.encoded().filter(|token| token.kind == token_type::NORMAL);
    let scored = ordinary.map(|token| (token.text, token.score));
    let build = || -> tokenizers::Result<tokenizers::Tokenizer> {
        let mut tokenizer =
            tokenizers::Tokenizer::new(byte_pair_model(vocabulary, scored, unknown)?);
        let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
        if removes_spaces {
            for (regex, kept) in [("^ +| +$", ""), (" {2,}", " ")] {
                let pattern = ReplacePattern::Regex(regex.to_owned());
                normalizers.push(Replace::new(pattern, kept)?.into());
            }
        }
        if starts_with_space {
            normalizers.push(Prepend::new(SPACE.to_owned()).into());
        }
        normalizers.push(Replace::new(" ", SPACE)?.into());
        tokenizer.with_normalizer(Some(Normalizers::new(normalizers)))?;
        let mut decoders: Vec<DecoderWrapper> =
            vec![Replace::new(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
        if starts_with_space {
            decoders.push(Strip::new(' ', 1, 0).into());
        }
        tokenizer.with_decoder(Some(Decoders::new(decoders)));
        Ok(tokenizer)
    };
    build().map_err(|error| broken(metadata, error.to_string()))
}
