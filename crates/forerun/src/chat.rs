//! Conversations of several turns.

use crate::answer::Answer;
use crate::engine::{Continuation, Engine};
use crate::error::ForerunError;
use crate::model_source::ModelSource;
use crate::plan::{Method, PlanError};
use crate::request::Request;
use forerun_core::TokenId;
use forerun_decode::Finish;
use forerun_runtime::Canceller;
use forerun_text::{
    ChatTemplate, ChatTemplateError, EncodeError, Message, PromptEnd, TemplateArguments,
    encode_latest_turns,
};
use std::ops::ControlFlow;

/// A conversation: its messages, and the caches that the workers keep for it until it is dropped.
///
/// Every turn renders and tokenizes the whole history. The caches find the longest prefix that they
/// already hold, and only the rest is computed. A template may therefore repeat earlier answers
/// unchanged, trim them, or drop their reasoning: that costs time, but the answer stays correct.
///
/// When the model's context is full, the oldest turns are left out, whole turns at a time. The
/// system message stays.
///
/// Answers are text. For events, pass [`Engine::chat_request`] and [`Engine::encode_chat`] to
/// [`Engine::stream_tokens`].
///
/// ```
/// use forerun::{Engine, RandomPair, Request};
/// use std::io::Write;
/// use std::ops::ControlFlow;
///
/// let pair = RandomPair::make()?;
/// let engine = Engine::open(pair.target())?;
/// let mut chat = engine.chat()?;
/// chat.set_system("You are a concise assistant.")?;
/// let request = Request { max_tokens: 32, ..Request::default() };
/// for message in ["What is a bonus token?", "And what is MAT?"] {
///     let reply = chat.send(message, &request, |text| {
///         print!("{text}");
///         std::io::stdout().flush().map_or(ControlFlow::Break(()), ControlFlow::Continue)
///     })?;
///     println!("\n{}", reply.answer.summary());
/// }
/// assert_eq!(chat.messages().count(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Chat<'a> {
    engine: &'a Engine,
    template: ChatTemplate,
    continuation: Continuation,
    system: Option<String>,
    /// User messages and answers, alternating.
    messages: Vec<Message>,
    /// The number of the oldest messages that the model no longer sees.
    forgotten: usize,
}

/// The reply to a message.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// The number of turns (a message and its answer) that were left out to make room for this
    /// answer. The model does not see them in later turns either.
    pub forgotten_turns: usize,
    /// Whether message and answer are now part of the conversation. They are not if the answer was
    /// interrupted before its first token.
    pub kept: bool,
}

/// Why a message got no answer, or a setting could not be changed. The conversation is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The chat template cannot render the conversation.
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    /// The engine cannot answer.
    #[error(transparent)]
    Engine(#[from] ForerunError),
    /// The message leaves no room for an answer.
    #[error(
        "the message is too long by {} token{}: together with what the template puts around it{} it has \
         {tokens} tokens, and the model sees at most {context}, one of them the answer's; shorten it",
        tokens + 1 - context,
        if tokens + 1 - context == 1 { "" } else { "s" },
        if *system { " and the system message" } else { "" },
    )]
    TooLong {
        /// The number of tokens of the message and of everything that cannot be left out.
        tokens: usize,
        /// The model's context length in tokens.
        context: usize,
        /// Whether `tokens` includes a system message.
        system: bool,
    },
    /// The message is too long to be tokenized as a whole.
    #[error(
        "the message is too long: it has {bytes} bytes, about {tokens} tokens, and the model sees at \
         most {context}, one of them the answer's; shorten it"
    )]
    FarTooLong {
        /// The length in bytes of the message and of what the template puts around it.
        bytes: usize,
        /// An estimate of the number of tokens.
        tokens: usize,
        /// The model's context length in tokens.
        context: usize,
    },
}

impl<'a> Chat<'a> {
    /// Creates an empty conversation with the method of the engine's plan.
    #[must_use]
    pub fn new(engine: &'a Engine, template: ChatTemplate) -> Self {
        let continuation =
            Continuation { sequence: engine.new_sequence(), method: engine.plan().method() };
        Self { engine, template, continuation, system: None, messages: Vec::new(), forgotten: 0 }
    }

    /// Returns the chat template.
    #[must_use]
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Returns all messages, including those that the model no longer sees.
    pub fn messages(&self) -> impl Iterator<Item = Message> + '_ {
        self.system().into_iter().chain(self.messages.iter().cloned())
    }

    fn system(&self) -> Option<Message> {
        self.system.clone().map(Message::system)
    }

    /// Sets the system message, from the next answer on. An empty text removes it.
    ///
    /// # Errors
    /// If the model's template does not support system messages, or has no text for any message.
    /// The old system message then stays.
    pub fn set_system(&mut self, text: &str) -> Result<(), ChatError> {
        let system = (!text.is_empty()).then(|| text.to_owned());
        let sample = system.clone().map(Message::system).into_iter().chain([Message::user("x")]);
        if self.template.render(&sample.collect::<Vec<_>>(), true)?.is_empty() {
            return Err(ChatTemplateError::Empty.into());
        }
        self.system = system;
        Ok(())
    }

    /// Returns the method of the next answer.
    #[must_use]
    pub fn method(&self) -> Method {
        self.continuation.method
    }

    /// Changes the method from the next answer on.
    ///
    /// Nothing is loaded, and every device keeps its models. A drafter's device is idle while the
    /// method does not draft.
    ///
    /// # Errors
    /// As [`Engine::check_method`].
    pub fn set_method(&mut self, method: Method) -> Result<(), PlanError> {
        self.engine.check_method(method)?;
        self.continuation.method = method;
        Ok(())
    }

    /// Removes all messages except the system message, and frees the caches.
    pub fn reset(&mut self) {
        self.messages.clear();
        self.forgotten = 0;
        self.engine.release(self.continuation.sequence);
    }

    /// Sends a message, streams the answer, and returns it.
    ///
    /// The answer ends where the template ends a turn: its stop string and end token are added to
    /// those of `request`. [`Request::default`] is greedy decoding of at most 200 tokens;
    /// `Request::default().sampled_as(engine.config().chat_sampling())` samples as the model
    /// suggests.
    ///
    /// `on_text` works as in [`Engine::generate`]. What a stopped answer has generated stays in the
    /// conversation.
    ///
    /// # Errors
    /// If the template refuses the message, the message is too long, or decoding fails. The
    /// conversation is then unchanged.
    pub fn send(
        &mut self,
        text: &str,
        request: &Request,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Reply, ChatError> {
        self.send_interruptibly(text, request, &Canceller::new(), on_text)
    }

    /// Sends a message as [`Chat::send`] does, with a canceller as in
    /// [`Engine::generate_interruptibly`].
    ///
    /// # Errors
    /// As [`Chat::send`].
    pub fn send_interruptibly(
        &mut self,
        text: &str,
        request: &Request,
        canceller: &Canceller,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Reply, ChatError> {
        let request = self.engine.chat_request(&self.template, request);
        let (prompt, forgotten) =
            self.prompt_that_fits(&Message::user(text), request.max_tokens)?;
        let answer =
            self.engine.continue_with(self.continuation, prompt, &request, canceller, on_text)?;
        // A message that got no token of an answer is not part of the conversation.
        let kept = answer.finish != Finish::Stopped || !answer.tokens.is_empty();
        let forgotten_turns = (forgotten - self.forgotten) / 2;
        if kept {
            self.messages.extend([Message::user(text), Message::assistant(&*answer.text)]);
            self.forgotten = forgotten;
        }
        Ok(Reply { answer, forgotten_turns, kept })
    }

    /// Returns the tokens of the conversation with one more message, and the number of the oldest
    /// messages that are left out to make room for an answer of `max_tokens` tokens, or of half the
    /// context if that is less.
    fn prompt_that_fits(
        &self,
        new: &Message,
        max_tokens: usize,
    ) -> Result<(Vec<TokenId>, usize), ChatError> {
        let context = self.engine.config().max_position_embeddings;
        let most = context - max_tokens.min(context / 2);
        let seen = self.messages[self.forgotten..].iter().chain([new]).cloned();
        let seen: Vec<Message> = self.system().into_iter().chain(seen).collect();
        let encode = |messages: Vec<Message>| self.engine.encode_chat(&self.template, &messages);
        match encode_latest_turns(&seen, most, encode) {
            Ok((prompt, left_out)) if prompt.len() < context => {
                Ok((prompt, self.forgotten + left_out))
            }
            Ok((prompt, _)) => {
                let (tokens, system) = (prompt.len(), self.system.is_some());
                Err(ChatError::TooLong { tokens, context, system })
            }
            Err(EncodeError::TooLong { bytes, tokens, .. }) => {
                Err(ChatError::FarTooLong { bytes, tokens, context })
            }
            Err(EncodeError::Template(error)) => Err(error.into()),
            Err(EncodeError::Tokenizer(error)) => Err(ForerunError::from(error).into()),
        }
    }
}

impl Drop for Chat<'_> {
    fn drop(&mut self) {
        self.engine.release(self.continuation.sequence);
    }
}

impl Engine {
    /// Begins a conversation with the model's own chat template. [`Chat::new`] takes another one.
    ///
    /// # Errors
    /// As [`Engine::chat_template`].
    pub fn chat(&self) -> Result<Chat<'_>, ChatError> {
        Ok(Chat::new(self, self.chat_template()?))
    }

    /// Loads the target's chat template, as [`ChatTemplate::from_checkpoint`] does.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_checkpoint`].
    pub fn chat_template(&self) -> Result<ChatTemplate, ChatTemplateError> {
        self.choose_chat_template(None)
    }

    /// Loads the chat template that `choice` names, as [`ChatTemplate::choose`] does, or without a
    /// choice the target's.
    ///
    /// # Errors
    /// As [`ChatTemplate::choose`] and [`ChatTemplate::from_checkpoint`].
    pub fn choose_chat_template(
        &self,
        choice: Option<&str>,
    ) -> Result<ChatTemplate, ChatTemplateError> {
        let file = self.tokenizer().file();
        match (self.plan().model(), choice) {
            (ModelSource::Embedded(model), Some(choice)) => {
                ChatTemplate::choose_embedded(model, choice)
            }
            (ModelSource::Embedded(model), None) => ChatTemplate::from_embedded(model),
            (_, Some(choice)) => ChatTemplate::choose(file, choice),
            (_, None) => ChatTemplate::from_checkpoint(file),
        }
    }

    /// Returns a request that ends with a turn of a chat template.
    #[must_use]
    pub fn chat_request(&self, template: &ChatTemplate, request: &Request) -> Request {
        let mut request = request.clone();
        request.stop.extend(template.stop().map(str::to_owned));
        let eos = template.eos_token().and_then(|token| self.tokenizer().token(token));
        request.stop_tokens.extend(eos.filter(|_| !request.ignore_eos));
        request
    }

    /// Encodes a conversation up to the beginning of an answer, as [`ChatTemplate::encode`] does.
    ///
    /// # Errors
    /// As [`ChatTemplate::encode`], and if the conversation is certainly longer than the model's
    /// context.
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
    ) -> Result<Vec<TokenId>, EncodeError> {
        self.encode_chat_with(template, messages, &TemplateArguments::default())
    }

    /// Encodes a conversation as [`Self::encode_chat`] does, with more for the template to read.
    /// Special tokens within the arguments are encoded as ordinary text, too.
    ///
    /// # Errors
    /// As [`Self::encode_chat`].
    pub fn encode_chat_with(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        arguments: &TemplateArguments,
    ) -> Result<Vec<TokenId>, EncodeError> {
        self.encode_chat_until(PromptEnd::NewMessage, template, messages, arguments)
    }

    /// Encodes a conversation as [`Self::encode_chat_with`] does, up to where the model begins to
    /// write.
    ///
    /// # Errors
    /// As [`Self::encode_chat_with`], and if the template does not show the message that is to be
    /// continued.
    pub fn encode_chat_until(
        &self,
        end: PromptEnd,
        template: &ChatTemplate,
        messages: &[Message],
        arguments: &TemplateArguments,
    ) -> Result<Vec<TokenId>, EncodeError> {
        let context = self.config().max_position_embeddings;
        template.encode_within(messages, arguments, end, self.tokenizer(), context)
    }
}
