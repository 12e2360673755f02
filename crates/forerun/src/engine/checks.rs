//! What an engine checks before it answers: prompts, requests and grammars.

use super::Engine;
use crate::error::ForerunError;
use crate::plan::Method;
use crate::request::{Request, RequestError};
use forerun_core::{AdapterId, Constraint, Sampling, TokenId};
use forerun_text::{Grammar, GrammarError, LongText, SpecialTokens};

impl Engine {
    /// Checks what [`Engine::stream_tokens`] refuses, without starting the answer.
    ///
    /// # Errors
    /// If the prompt is empty or too long for the context, an option is out of range, or the
    /// grammar cannot be used.
    pub fn check_request(
        &self,
        prompt: &[TokenId],
        request: &Request,
        method: Method,
    ) -> Result<(), ForerunError> {
        let method = request.decoded_by(method);
        self.sampling_of(prompt, request, method)?;
        if let Some(grammar) = &request.grammar {
            self.grammars.constraint(grammar, &self.end_tokens(request))?;
        }
        self.draft_shape(method, request)?;
        Ok(())
    }

    /// Encodes a text as [`Engine::generate`] does.
    ///
    /// # Errors
    /// If the text is empty or too long for the context, or cannot be encoded.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<TokenId>, ForerunError> {
        if prompt.is_empty() {
            return Err(ForerunError::EmptyPrompt);
        }
        self.encode_text(prompt, SpecialTokens { add: true, parse: true })
    }

    /// Encodes a text, which may be empty.
    ///
    /// # Errors
    /// If the text is too long for the context, or cannot be encoded.
    pub fn encode_text(
        &self,
        text: &str,
        special: SpecialTokens,
    ) -> Result<Vec<TokenId>, ForerunError> {
        self.check_length(text)?;
        Ok(self.tokenizer.encode_with(text, special)?)
    }

    /// Checks that a text is not certainly too long for the context, without encoding all of it.
    ///
    /// # Errors
    /// If it is, or cannot be encoded.
    pub fn check_length(&self, text: &str) -> Result<(), ForerunError> {
        let context = self.config.max_position_embeddings;
        if let Some(LongText { bytes, tokens }) = self.tokenizer.too_long(text, context)? {
            let model = self.plan.model().clone();
            return Err(ForerunError::PromptFarTooLong { bytes, tokens, context, model });
        }
        Ok(())
    }

    /// Checks that a grammar can be used with this model, and keeps it for answers.
    ///
    /// # Errors
    /// If it is malformed, has no texts, needs something unsupported, or is too large.
    pub fn check_grammar(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        self.grammars.check(grammar)
    }

    /// Compiles a grammar to the constraint of an answer that ends with one of `end_tokens`, for
    /// your own jobs and decoders. Only end tokens without text count.
    ///
    /// # Errors
    /// As [`Engine::check_grammar`], or if no end token is left.
    pub fn constraint(
        &self,
        grammar: &Grammar,
        end_tokens: &[TokenId],
    ) -> Result<Constraint, GrammarError> {
        let (specification, compiled) = self.grammars.constraint(grammar, end_tokens)?;
        Ok(Constraint::new(specification, compiled))
    }

    /// Refuses a model for embeddings.
    pub(crate) fn check_generates(&self) -> Result<(), ForerunError> {
        match self.config.pooling {
            Some(_) => Err(ForerunError::OnlyEmbeddings { model: self.plan.model().clone() }),
            None => Ok(()),
        }
    }

    /// Returns the sampling options of an answer, and checks them and the prompt.
    pub(super) fn sampling_of(
        &self,
        prompt: &[TokenId],
        request: &Request,
        method: Method,
    ) -> Result<Sampling, ForerunError> {
        self.check_generates()?;
        let mut sampling = request.keyed_sampling(request.verification_by(method)?)?;
        sampling.validate_for(self.config.vocab_size).map_err(RequestError::from)?;
        let context = self.config.max_position_embeddings;
        if prompt.is_empty() {
            return Err(ForerunError::EmptyPrompt);
        }
        if prompt.len() >= context {
            let model = self.plan.model().clone();
            return Err(ForerunError::PromptTooLong { prompt: prompt.len(), context, model });
        }
        sampling.adapter = self.adapter(request.adapter.as_deref())?;
        if sampling.dry.applies() {
            sampling.dry_breakers = self.breakers.of(&sampling.dry.sequence_breakers)?;
        }
        Ok(sampling)
    }

    /// Returns the adapter with this name.
    fn adapter(&self, name: Option<&str>) -> Result<Option<AdapterId>, RequestError> {
        let Some(name) = name else { return Ok(None) };
        let names = self.plan.adapters().iter().map(|adapter| &adapter.name);
        match (0..).map(AdapterId).zip(names.clone()).find(|(_, other)| *other == name) {
            Some((id, _)) => Ok(Some(id)),
            None => {
                let (name, names) = (name.to_owned(), names.cloned().collect());
                Err(RequestError::Adapter { name, names })
            }
        }
    }

    /// Returns the tokens that end an answer.
    pub(super) fn end_tokens(&self, request: &Request) -> Vec<TokenId> {
        let mut ends = request.stop_tokens.clone();
        if !request.ignore_eos {
            ends.extend(&self.config.eos_token_ids);
        }
        ends
    }
}
