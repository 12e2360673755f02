//! Answers: a prompt and a request become a stream of events.

use super::Engine;
use crate::answer::Answer;
use crate::answer_stream::{AnswerEvent, AnswerStream, Sink};
use crate::error::ForerunError;
use crate::plan::Method;
use crate::request::Request;
use forerun_core::{Constraint, Need, SequenceId, TokenId};
use forerun_decode::{Limits, Sequence};
use forerun_runtime::Canceller;
use forerun_text::TextStream;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The sequence that an answer continues, and the decoding method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Continuation {
    /// The id of the caches.
    pub(crate) sequence: SequenceId,
    /// The method, which the plan's workers must support.
    pub(crate) method: Method,
}

impl Engine {
    /// Continues a text and returns the whole answer, without streaming.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn complete(&self, prompt: &str, request: &Request) -> Result<Answer, ForerunError> {
        self.generate(prompt, request, |_| ControlFlow::Continue(()))
    }

    /// Continues a text and streams the answer.
    ///
    /// `on_text` receives whole characters as soon as they are final, and nothing of a stop string.
    /// If it returns [`ControlFlow::Break`], the answer ends with
    /// [`Finish::Stopped`](crate::Finish::Stopped).
    ///
    /// # Errors
    /// If the prompt is empty or too long for the context, an option is out of range, or a job
    /// fails.
    pub fn generate(
        &self,
        prompt: &str,
        request: &Request,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        self.generate_interruptibly(prompt, request, &Canceller::new(), on_text)
    }

    /// Continues a text as [`Engine::generate`] does. `canceller` stops the answer from another
    /// thread, even during a forward pass; the answer then ends with
    /// [`Finish::Stopped`](crate::Finish::Stopped).
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_interruptibly(
        &self,
        prompt: &str,
        request: &Request,
        canceller: &Canceller,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        let prompt = self.encode_prompt(prompt)?;
        self.generate_tokens_interruptibly(prompt, request, canceller, on_text)
    }

    /// Continues the given tokens as [`Engine::generate`] continues a text. Nothing is added to the
    /// prompt, not even BOS.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_tokens(
        &self,
        prompt: Vec<TokenId>,
        request: &Request,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        self.generate_tokens_interruptibly(prompt, request, &Canceller::new(), on_text)
    }

    /// Continues the given tokens as [`Engine::generate_tokens`] does, with a canceller as in
    /// [`Engine::generate_interruptibly`].
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_tokens_interruptibly(
        &self,
        prompt: Vec<TokenId>,
        request: &Request,
        canceller: &Canceller,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        let continuation =
            Continuation { sequence: self.new_sequence(), method: self.plan.method() };
        let answer = self.continue_with(continuation, prompt, request, canceller, on_text);
        self.release(continuation.sequence);
        answer
    }

    /// Continues a text, as an iterator of events: tokens with their origin and log-probabilities,
    /// text, and in the end the whole [`Answer`]. Dropping the iterator cancels the answer.
    ///
    /// ```
    /// use forerun::{AnswerEvent, Engine, Options, RandomPair, Request, TokenOrigin};
    /// use std::io::Write;
    ///
    /// let pair = RandomPair::make()?;
    /// let draft_model = Some(pair.drafter().into());
    /// let options = Options { draft_model, ..Options::new(pair.target()) };
    /// let engine = Engine::open(options)?;
    /// let request = Request { max_tokens: 16, ignore_eos: true, ..Request::default() };
    /// let (mut drafted, mut tokens) = (0, 0);
    /// for event in engine.stream("Once upon a time", &request)? {
    ///     match event? {
    ///         AnswerEvent::Token(token) => {
    ///             tokens += 1;
    ///             drafted += usize::from(token.origin == TokenOrigin::Draft);
    ///         }
    ///         AnswerEvent::Text(text) => {
    ///             print!("{text}");
    ///             std::io::stdout().flush()?;
    ///         }
    ///         AnswerEvent::Finished(answer) => println!("\n{}", answer.summary()),
    ///     }
    /// }
    /// assert_eq!(tokens, 16);
    /// println!("{drafted} of {tokens} tokens were drafted");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the prompt is empty or too long for the context, or an option is out of range. A job that
    /// fails is an error of the iterator, and its last item.
    pub fn stream(
        &self,
        prompt: &str,
        request: &Request,
    ) -> Result<AnswerStream<'_>, ForerunError> {
        let prompt = self.encode_prompt(prompt)?;
        self.stream_tokens(prompt, request, self.plan.method(), &Canceller::new())
    }

    /// Continues the given tokens as [`Engine::stream`] continues a text, with a method that
    /// [`Engine::check_method`] accepts. Nothing is added to the prompt. `canceller` stops the
    /// answer from another thread.
    ///
    /// # Errors
    /// As [`Engine::stream`].
    pub fn stream_tokens(
        &self,
        prompt: Vec<TokenId>,
        request: &Request,
        method: Method,
        canceller: &Canceller,
    ) -> Result<AnswerStream<'_>, ForerunError> {
        let continuation = Continuation { sequence: self.new_sequence(), method };
        let mut stream = self.stream_with(continuation, prompt, request, canceller)?;
        stream.releases = true;
        Ok(stream)
    }

    /// Continues tokens as [`Engine::generate_tokens`] does, within a sequence of several answers:
    /// the workers reuse the prefix of `prompt` that their caches hold, and keep the caches.
    pub(crate) fn continue_with(
        &self,
        continuation: Continuation,
        prompt: Vec<TokenId>,
        request: &Request,
        canceller: &Canceller,
        mut on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, ForerunError> {
        let mut stream = self.stream_with(continuation, prompt, request, canceller)?;
        while let Some(event) = stream.next().transpose()? {
            match event {
                AnswerEvent::Token(_) => {}
                AnswerEvent::Text(text) => {
                    if on_text(&text).is_break() {
                        stream.stop();
                    }
                }
                AnswerEvent::Finished(answer) => return Ok(*answer),
            }
        }
        unreachable!("a stream ends with its answer or with an error")
    }

    /// Starts an answer that continues tokens.
    fn stream_with(
        &self,
        continuation: Continuation,
        prompt: Vec<TokenId>,
        request: &Request,
        canceller: &Canceller,
    ) -> Result<AnswerStream<'_>, ForerunError> {
        let method = request.decoded_by(continuation.method);
        let mut sampling = self.sampling_of(&prompt, request, method)?;
        let score =
            |top| self.score_with(sampling.adapter, (&prompt[..1], &prompt[1..]), top, canceller);
        let prompt_logprobs = request.prompt_logprobs.map(score).transpose()?;
        let context = self.config.max_position_embeddings;
        let eos = self.end_tokens(request);
        let grammar = match &request.grammar {
            Some(grammar) => Some(self.grammars.constraint(grammar, &eos)?),
            None => None,
        };
        sampling.constraint = grammar.as_ref().map(|(specification, compiled)| {
            Constraint::new(specification.as_str(), Arc::clone(compiled) as _)
        });
        let grammar = grammar.map(|(_, compiled)| compiled);
        let limits = Limits { max_tokens: request.max_tokens, context_length: context, eos };
        let id = continuation.sequence;
        let seed = sampling.randomness.seed;
        // Rejection sampling and block verification draw other numbers for other draft lengths. If
        // a seed promises the same text, the length must not depend on measured times.
        let reproducible = !sampling.is_deterministic() && request.seed.is_some();
        let verification = sampling.verification;
        let mut text = TextStream::new(&self.tokenizer, &prompt);
        if request.special_tokens {
            text = text.with_special_tokens();
        }
        let sink = Sink::new(text, &request.stop);
        let prompt_tokens = prompt.len();
        let mut sequence = Sequence::new(id, prompt, sampling, limits);
        if let Some(top) = request.logprobs {
            sequence = sequence.with_logprobs(top);
        }
        if self.reads_features && method.offers(Need::Features) {
            sequence = sequence.with_features();
        }
        if self.plan.drafter().needs(Need::Feedback) && method.offers(Need::Feedback) {
            sequence = sequence.with_draft_feedback();
        }
        let shape = self.draft_shape(method, request)?;
        // A shape that was chosen for one answer says nothing about the next one.
        let learns = !reproducible && shape.is_none();
        let decoder = self.lock_learned().decoder(method, prompt_tokens, reproducible, shape);
        Ok(AnswerStream {
            engine: self,
            sequence,
            cluster: self.workers.cluster(canceller),
            decoder: Some(decoder),
            grammar,
            method,
            sink,
            canceller: canceller.clone(),
            learns,
            releases: false,
            prompt_tokens,
            prompt_logprobs,
            verification,
            seed,
            events: VecDeque::new(),
        })
    }
}
