//! A conversation of several turns.

use crate::answer::Answer;
use crate::chat_template::{ChatTemplate, ChatTemplateError, EncodeError, Message};
use crate::engine::{Continuation, Forerun};
use crate::error::ForerunError;
use crate::plan::{DrafterKind, Method};
use crate::request::Request;
use forerun_core::{DraftShape, TokenId};
use forerun_decode::Finish;
use forerun_runtime::Canceller;
use std::ops::ControlFlow;

/// A conversation: its messages, and the caches that the workers keep for it until it is dropped.
///
/// Every turn renders and tokenizes the whole history, and the jobs carry all of it. What the caches
/// hold of it already is not computed again: they find the longest prefix that agrees by themselves.
/// So it is no matter whether a template repeats earlier answers as they were, trims them, or leaves
/// their thoughts out, nor whether a text is tokenized as it was generated; it only costs time.
///
/// What no longer fits the model's context is left out, whole turns at a time, the oldest first. The
/// system message stays.
pub struct Chat<'a> {
    engine: &'a Forerun,
    template: ChatTemplate,
    place: Continuation,
    system: Option<String>,
    /// A question and its answer in turn.
    messages: Vec<Message>,
    /// How many of them, the oldest, the model no longer sees.
    forgotten: usize,
}

/// The answer to a message.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// Turns, each a message and its answer, that had to be left out for it, for good.
    pub forgotten_turns: usize,
    /// Whether message and answer are part of the conversation. They are not if it was interrupted
    /// before there was a token of the answer.
    pub kept: bool,
}

/// Why there is no answer. The conversation is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// See [`ChatTemplateError`].
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    /// See [`ForerunError`].
    #[error(transparent)]
    Forerun(#[from] ForerunError),
    /// A message that leaves no room for an answer.
    #[error(
        "the message is too long by {} token{}: with what the template puts around it{} it has \
         {tokens}, and the model sees at most {context}, one of them the answer's",
        tokens + 1 - context,
        if tokens + 1 - context == 1 { "" } else { "s" },
        if *system { " and the system message" } else { "" },
    )]
    TooLong {
        /// Tokens of the message and of what cannot be left out.
        tokens: usize,
        /// Tokens that the model can see.
        context: usize,
        /// Whether there is a system message among them.
        system: bool,
    },
    /// A method that needs what is not loaded.
    #[error(
        "the method {0} needs a drafter: start again with --draft-model DIR or --drafter prompt-lookup"
    )]
    NoDrafter(Method),
    /// A method that drafts chains, where trees are drafted.
    #[error("the method {0} drafts chains: start again without --tree")]
    ChainsOnly(Method),
    /// A method that drafts ahead of the target, where the drafter reads what the target has read.
    #[error(
        "the drafter reads what the target made of all tokens before, which comes too late for the \
         method {0}: stay with speculative, or start again with a drafter that reads tokens alone"
    )]
    FeaturesInTurn(Method),
}

impl From<EncodeError> for ChatError {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::Template(error) => Self::Template(error),
            EncodeError::Tokenizer(error) => Self::Forerun(error.into()),
        }
    }
}

impl<'a> Chat<'a> {
    /// A conversation without messages, by the method of the engine's plan.
    #[must_use]
    pub fn new(engine: &'a Forerun, template: ChatTemplate) -> Self {
        let place =
            Continuation { sequence: engine.new_sequence(), method: engine.plan().method() };
        Self { engine, template, place, system: None, messages: Vec::new(), forgotten: 0 }
    }

    /// The template.
    #[must_use]
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// All messages, those that the model no longer sees included.
    pub fn messages(&self) -> impl Iterator<Item = Message> + '_ {
        self.system().into_iter().chain(self.messages.iter().cloned())
    }

    fn system(&self) -> Option<Message> {
        self.system.clone().map(Message::system)
    }

    /// Sets what the model is to keep to, from the next answer on; an empty text takes it back.
    ///
    /// # Errors
    /// If the model's template has no place for it; then all stays as it was.
    pub fn set_system(&mut self, text: &str) -> Result<(), ChatError> {
        let system = (!text.is_empty()).then(|| text.to_owned());
        let sample = system.clone().map(Message::system).into_iter().chain([Message::user("x")]);
        self.template.render(&sample.collect::<Vec<_>>(), true)?;
        self.system = system;
        Ok(())
    }

    /// When tokens are drafted and verified.
    #[must_use]
    pub fn method(&self) -> Method {
        self.place.method
    }

    /// Changes the method from the next answer on. Nothing is loaded anew, and devices keep what
    /// they run: without drafts, a drafter's device is idle.
    ///
    /// # Errors
    /// If the method needs a drafter and the engine has none, chains where it drafts trees, or drafts
    /// ahead where its drafter reads the target's hidden states.
    pub fn set_method(&mut self, method: Method) -> Result<(), ChatError> {
        if method != Method::Autoregressive && self.engine.plan().drafter() == DrafterKind::None {
            return Err(ChatError::NoDrafter(method));
        }
        let learns = self.engine.plan().drafter().reads_scores();
        if method.is_parallel() && (learns || self.engine.reads_features()) {
            return Err(ChatError::FeaturesInTurn(method));
        }
        let is_chain = matches!(self.engine.plan().shape(), DraftShape::Chain { .. });
        if method.is_parallel() && !is_chain {
            return Err(ChatError::ChainsOnly(method));
        }
        self.place.method = method;
        Ok(())
    }

    /// Forgets all messages but the system message.
    pub fn reset(&mut self) {
        self.messages.clear();
        self.forgotten = 0;
        self.engine.release(self.place.sequence);
    }

    /// Says something and returns the answer; `on_text` sees it piece by piece and may stop it, as
    /// `canceller` may from another thread. A stopped answer stays in the conversation as far as it
    /// came.
    ///
    /// # Errors
    /// If the template refuses the message, it is too long, or decoding fails. The message is not
    /// part of the conversation then.
    pub fn send(
        &mut self,
        text: &str,
        request: &Request,
        canceller: &Canceller,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Reply, ChatError> {
        let mut request = request.clone();
        request.stop.extend(self.template.stop().map(str::to_owned));
        let eos = self.template.eos_token().and_then(|token| self.engine.tokenizer().token(token));
        request.stop_tokens.extend(eos.filter(|_| !request.ignore_eos));
        let (prompt, forgotten) = self.matches_request(&Message::user(text), request.max_tokens)?;
        let answer = self.engine.continue_with(self.place, prompt, &request, canceller, on_text)?;
        // Interrupted before it began: it was not answered, so it was not said.
        let kept = answer.finish != Finish::Stopped || !answer.tokens.is_empty();
        let forgotten_turns = (forgotten - self.forgotten) / 2;
        if kept {
            self.messages.extend([Message::user(text), Message::assistant(&*answer.text)]);
            self.forgotten = forgotten;
        }
        Ok(Reply { answer, forgotten_turns, kept })
    }

    /// The tokens of the conversation with one more message, and how many of the oldest messages are
    /// left out so that an answer has room: `max_tokens`, but no more than half of the context.
    fn matches_request(
        &self,
        new: &Message,
        max_tokens: usize,
    ) -> Result<(Vec<TokenId>, usize), ChatError> {
        let context = self.engine.config().max_position_embeddings;
        let room = max_tokens.min(context / 2);
        let mut forgotten = self.forgotten;
        loop {
            let seen = self.messages[forgotten..].iter().chain([new]).cloned();
            let seen: Vec<Message> = self.system().into_iter().chain(seen).collect();
            let prompt = self.template.encode(&seen, self.engine.tokenizer())?;
            let alone = forgotten == self.messages.len();
            if prompt.len() + room <= context || (alone && prompt.len() < context) {
                return Ok((prompt, forgotten));
            }
            if alone {
                let (tokens, system) = (prompt.len(), self.system.is_some());
                return Err(ChatError::TooLong { tokens, context, system });
            }
            forgotten += 2;
        }
    }
}

impl Drop for Chat<'_> {
    fn drop(&mut self) {
        self.engine.release(self.place.sequence);
    }
}
