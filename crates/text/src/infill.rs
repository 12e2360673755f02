//! Fill-in-the-middle: prompts of models that were trained to write what is missing in a text.

use crate::tokenizer::{SpecialTokens, Tokenizer, TokenizerError};
use forerun_core::TokenId;

/// A text with a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The text before the gap.
    pub prefix: String,
    /// The text after the gap.
    pub suffix: String,
    /// The begun line, which stands after the prefix.
    pub begun: String,
    /// Names and texts of other files, the least important first.
    pub files: Vec<(String, String)>,
}

/// The tokens around the parts of a text with a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfillTokens {
    prefix: TokenId,
    suffix: TokenId,
    middle: TokenId,
    repository: Option<TokenId>,
    file: Option<TokenId>,
    ends: Vec<TokenId>,
}

// The texts of these tokens: Qwen2.5-Coder and CodeGemma, StarCoder, SantaCoder, CodeLlama,
// DeepSeek-Coder, GLM-4.
const PREFIX: [&str; 6] = [
    "<|fim_prefix|>",
    "<fim_prefix>",
    "<fim-prefix>",
    "▁<PRE>",
    "<｜fim▁begin｜>",
    "<|code_prefix|>",
];
const SUFFIX: [&str; 6] = [
    "<|fim_suffix|>",
    "<fim_suffix>",
    "<fim-suffix>",
    "▁<SUF>",
    "<｜fim▁hole｜>",
    "<|code_suffix|>",
];
const MIDDLE: [&str; 6] = [
    "<|fim_middle|>",
    "<fim_middle>",
    "<fim-middle>",
    "▁<MID>",
    "<｜fim▁end｜>",
    "<|code_middle|>",
];
const REPOSITORY: [&str; 4] = ["<|repo_name|>", "<repo_name>", "<reponame>", "<|repo|>"];
const FILE: [&str; 3] = ["<|file_sep|>", "<file_sep>", "<|file_separator|>"];
/// Other tokens after which nothing belongs to the gap.
const ENDS: [&str; 5] = ["▁<EOT>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|endoftext|>"];

impl InfillTokens {
    /// Returns the tokens for a tokenizer: those that its GGUF file names, or else those with the
    /// texts of a known family. `None` if there are none.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let named = |texts: &[&str]| texts.iter().find_map(|text| tokenizer.token(text));
        let [prefix, suffix, middle] = tokenizer.infill();
        let (repository, file) = (named(&REPOSITORY), named(&FILE));
        let ends = ENDS.iter().filter_map(|text| tokenizer.token(text));
        Some(Self {
            prefix: prefix.or_else(|| named(&PREFIX))?,
            suffix: suffix.or_else(|| named(&SUFFIX))?,
            middle: middle.or_else(|| named(&MIDDLE))?,
            repository,
            file,
            ends: ends.chain(repository).chain(file).collect(),
        })
    }

    /// Returns the prompt for a text with a gap, in the order of llama.cpp: other files, prefix,
    /// begun line, suffix. Special tokens within the texts are ordinary text. Of the files, it has
    /// the last ones with which it has at most `most` tokens.
    ///
    /// # Errors
    /// If a text cannot be encoded.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        gap: &Gap,
        most: usize,
    ) -> Result<Vec<TokenId>, TokenizerError> {
        let encode =
            |text: &str| tokenizer.encode_with(text, SpecialTokens { add: false, parse: false });
        let tagged =
            |token: TokenId, text: &str| encode(text).map(|tokens| [vec![token], tokens].concat());
        let mut around = tagged(self.prefix, &gap.prefix)?;
        around.extend(encode(&gap.begun)?);
        around.extend(tagged(self.suffix, &gap.suffix)?);
        around.push(self.middle);
        let mut prompt = tokenizer.encode_part("", true)?;
        let head = self.repository.map(|token| tagged(token, "myproject\n")).transpose()?;
        let head = head.unwrap_or_default();
        let last = self.file.map(|token| tagged(token, "filename\n")).transpose()?;
        let mut files = vec![last.unwrap_or_default()];
        let mut len = prompt.len() + head.len() + files[0].len() + around.len();
        for (name, text) in gap.files.iter().rev() {
            let mut file = match self.file {
                Some(token) => tagged(token, &format!("{name}\n"))?,
                None => encode("\n\n--- snippet ---\n\n")?,
            };
            file.extend(encode(text)?);
            len += file.len();
            if len > most {
                break;
            }
            files.push(file);
        }
        if files.len() > 1 {
            prompt.extend(head);
            prompt.extend(files.into_iter().rev().flatten());
        }
        prompt.extend(around);
        Ok(prompt)
    }

    /// Returns tokens that end the gap, besides the model's own ends.
    #[must_use]
    pub fn ends(&self) -> &[TokenId] {
        &self.ends
    }
}
