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
    /// What the gap begins with. The answer continues it.
    pub begun: String,
    /// Names and texts of other files.
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
    /// suffix, and the beginning of the gap. Special tokens within the texts are ordinary text.
    ///
    /// # Errors
    /// If a text cannot be encoded.
    pub fn prompt(&self, tokenizer: &Tokenizer, gap: &Gap) -> Result<Vec<TokenId>, TokenizerError> {
        let encode =
            |text: &str| tokenizer.encode_with(text, SpecialTokens { add: false, parse: false });
        let mut prompt = tokenizer.encode_part("", true)?;
        if !gap.files.is_empty() {
            if let Some(repository) = self.repository {
                prompt.push(repository);
                prompt.extend(encode("myproject\n")?);
            }
            for (name, text) in &gap.files {
                match self.file {
                    Some(file) => {
                        prompt.push(file);
                        prompt.extend(encode(&format!("{name}\n"))?);
                    }
                    None => prompt.extend(encode("\n\n--- snippet ---\n\n")?),
                }
                prompt.extend(encode(text)?);
            }
            if let Some(file) = self.file {
                prompt.push(file);
                prompt.extend(encode("filename\n")?);
            }
        }
        for (token, text) in [(self.prefix, &gap.prefix), (self.suffix, &gap.suffix)] {
            prompt.push(token);
            prompt.extend(encode(text)?);
        }
        prompt.push(self.middle);
        prompt.extend(encode(&gap.begun)?);
        Ok(prompt)
    }

    /// Returns tokens that end the gap, besides the model's own ends.
    #[must_use]
    pub fn ends(&self) -> &[TokenId] {
        &self.ends
    }
}
