//! The engine as Python sees it.

#![expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 passes what it reads from Python by value"
)]

use crate::answers::{Answers, Task};
use crate::chat::{Conversation, ConversationFields};
use crate::errors::{closed, engine_error, of_engine, value_error};
use crate::options::EngineOptions;
use crate::output::{LogprobFields, logprob_fields};
use crate::params::Params;
use crate::stream::{LOOK_EVERY, Stream};
use forerun::checkpoint::{Config, SuggestedSampling};
use forerun::text::Tokenizer;
use forerun::{Canceller, TokenId};
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Loaded models that answer requests.
#[pyclass(frozen, module = "forerun._forerun")]
pub(crate) struct Engine {
    /// `None` once the engine is closed.
    engine: Mutex<Option<Arc<forerun::Engine>>>,
    tokenizer: Arc<Tokenizer>,
    config: Config,
    answers: Answers,
    description: Description,
    /// The process that has the engine's threads.
    process: u32,
}

/// What the engine was opened with.
#[derive(Clone, IntoPyObject)]
struct Description {
    model: String,
    draft_model: Option<String>,
    method: String,
    drafter: String,
    placement: String,
    max_model_len: usize,
    vocab_size: usize,
    eos_token_ids: Vec<TokenId>,
    bos_token_id: Option<TokenId>,
}

/// The sampling options that a checkpoint suggests.
#[derive(IntoPyObject)]
struct Suggested {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
}

impl Engine {
    /// Returns the engine.
    ///
    /// # Errors
    /// If it is closed, or belongs to the process that this one was forked from.
    pub(crate) fn engine(&self) -> PyResult<Arc<forerun::Engine>> {
        if self.process != std::process::id() {
            return Err(engine_error(
                "the engine belongs to another process, and its threads are not part of this one: create an LLM \
                 after the fork, or use the start method \"spawn\"",
            ));
        }
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.clone().ok_or_else(closed)
    }
}

#[pymethods]
impl Engine {
    /// Loads models.
    #[new]
    fn open(py: Python<'_>, options: EngineOptions) -> PyResult<Self> {
        let max_num_seqs = options.max_num_seqs;
        if max_num_seqs == 0 {
            return Err(value_error("`max_num_seqs` is 0, but it must be at least 1"));
        }
        let engine = options.open(py)?;
        let plan = engine.plan();
        let config = engine.config().clone();
        let description = Description {
            model: plan.model().to_string(),
            draft_model: plan.draft_model().map(ToString::to_string),
            method: plan.method().to_string(),
            drafter: plan.drafter().to_string(),
            placement: plan.placement().to_string(),
            max_model_len: config.max_position_embeddings,
            vocab_size: config.vocab_size,
            eos_token_ids: config.eos_token_ids.clone(),
            bos_token_id: config.bos_token_id,
        };
        let most = engine.cache_answers().map_or(max_num_seqs, |most| most.min(max_num_seqs));
        Ok(Self {
            tokenizer: Arc::clone(engine.tokenizer()),
            config,
            answers: Answers::new(most.max(1)),
            description,
            engine: Mutex::new(Some(Arc::new(engine))),
            process: std::process::id(),
        })
    }

    /// Starts an answer to the given tokens. `on_event` is called from another thread after each
    /// event with `every`, and in any case after the last one.
    #[pyo3(signature = (prompt, params, on_event = None, every = false, conversation = None))]
    fn start(
        &self,
        prompt: Vec<TokenId>,
        params: Params,
        on_event: Option<Py<PyAny>>,
        every: bool,
        conversation: Option<&Conversation>,
    ) -> PyResult<Stream> {
        let engine = self.engine()?;
        let request = match conversation {
            None => params.into_request()?,
            Some(conversation) => conversation.request(&engine, params)?,
        };
        self.check_tokens(&prompt)?;
        let (stream, sink) = Stream::new(&self.tokenizer, on_event, every);
        let canceller = stream.canceller();
        let task = Task { engine, prompt, request, canceller, sink };
        self.answers.start(task).map_err(engine_error)?;
        Ok(stream)
    }

    /// Encodes a prompt.
    fn encode_prompt(&self, py: Python<'_>, text: &str) -> PyResult<Vec<TokenId>> {
        let engine = self.engine()?;
        py.detach(|| engine.encode_prompt(text)).map_err(|error| of_engine(&error))
    }

    /// Encodes a conversation up to the beginning of an answer.
    fn conversation(&self, py: Python<'_>, fields: ConversationFields) -> PyResult<Conversation> {
        let engine = self.engine()?;
        py.detach(|| Conversation::new(&engine, &fields))
    }

    /// Returns the log-probability of each token of a continuation, with the `top` most probable
    /// tokens at its place.
    #[pyo3(signature = (prompt, continuation, top = 0))]
    fn score(
        &self,
        py: Python<'_>,
        prompt: Vec<TokenId>,
        continuation: Vec<TokenId>,
        top: usize,
    ) -> PyResult<Vec<LogprobFields>> {
        let engine = self.engine()?;
        self.check_tokens(&prompt)?;
        self.check_tokens(&continuation)?;
        let canceller = Canceller::new();
        let scores = interruptible(py, &canceller, || {
            engine.score(&prompt, &continuation, top, &canceller)
        })?;
        let scores = scores.map_err(|error| of_engine(&error))?;
        Ok(scores.iter().map(|score| logprob_fields(&self.tokenizer, score)).collect())
    }

    /// Returns the embeddings of texts.
    fn embed(&self, py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<Vec<f32>>> {
        let engine = self.engine()?;
        let canceller = Canceller::new();
        let embeddings = interruptible(py, &canceller, || {
            let texts = texts.iter().map(|text| engine.encode_to_embed(text, false));
            engine.embed_tokens(&texts.collect::<Result<Vec<_>, _>>()?, &canceller)
        })?;
        embeddings.map_err(|error| of_engine(&error))
    }

    /// Encodes any text, with BOS if the tokenizer adds it.
    fn encode(&self, text: &str) -> PyResult<Vec<TokenId>> {
        self.tokenizer.encode(text).map_err(engine_error)
    }

    /// Decodes tokens.
    #[pyo3(signature = (tokens, skip_special_tokens = true))]
    fn decode(&self, tokens: Vec<TokenId>, skip_special_tokens: bool) -> String {
        match skip_special_tokens {
            true => self.tokenizer.decode(&tokens),
            false => self.tokenizer.decode_with_special(&tokens),
        }
    }

    /// Returns the text of a token in the middle of a text.
    fn piece(&self, token: TokenId) -> String {
        self.tokenizer.piece(token)
    }

    /// Returns the token with this text in the vocabulary.
    fn token(&self, text: &str) -> Option<TokenId> {
        self.tokenizer.token(text)
    }

    /// Returns what the engine was opened with.
    fn description(&self) -> Description {
        self.description.clone()
    }

    /// Returns the sampling options that the checkpoint suggests.
    fn suggested_sampling(&self) -> Option<Suggested> {
        let SuggestedSampling { temperature, top_k, top_p, min_p, repetition_penalty } =
            self.config.suggested_sampling?;
        Some(Suggested { temperature, top_k, top_p, min_p, repetition_penalty })
    }

    /// Ends all answers, and frees the models.
    fn close(&self, py: Python<'_>) {
        if self.process != std::process::id() {
            return;
        }
        py.detach(|| {
            self.answers.close();
            drop(self.engine.lock().unwrap_or_else(PoisonError::into_inner).take());
        });
    }

    /// Returns whether the engine is closed.
    fn is_closed(&self) -> bool {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Engine {
    /// Checks that tokens are part of the vocabulary.
    pub(crate) fn check_tokens(&self, tokens: &[TokenId]) -> PyResult<()> {
        let size = self.config.vocab_size;
        match tokens.iter().find(|&&token| token as usize >= size) {
            None => Ok(()),
            Some(token) => Err(value_error(format!(
                "the prompt has the token {token}, but the model's vocabulary has {size} tokens"
            ))),
        }
    }
}

/// Computes something on a thread of its own while this one lets Python handle signals. A signal
/// that raises an exception cancels the computation.
fn interruptible<T: Send>(
    py: Python<'_>,
    canceller: &Canceller,
    compute: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    let receiver = Mutex::new(receiver);
    let wait = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK_EVERY);
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(compute()));
        loop {
            match py.detach(wait) {
                Ok(computed) => return Ok(computed),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(engine_error("the computation failed"));
                }
                Err(RecvTimeoutError::Timeout) => {
                    py.check_signals().inspect_err(|_| canceller.cancel())?;
                }
            }
        }
    })
}
