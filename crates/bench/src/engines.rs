//! Loads all configurations at once, with shared weights, so that they can answer one after
//! another.

use crate::provenance::{peak_memory_bytes, reset_peak_memory};
use crate::record::{AnswerRecord, TurnRecord};
use crate::run::Answerer;
use crate::{BenchError, Configuration, Prompt};
use forerun::text::EncodeError;
use forerun::{
    ChatError, ChatTemplate, Engine, ForerunError, Loader, Message, Request, SamplingOptions,
    TokenId,
};
use std::ops::ControlFlow;

/// Number of spans in a sample timeline.
const SAMPLE_SPANS: usize = 48;

/// How prompts are given to the model. A prompt with several turns is always a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptStyle {
    /// As conversations if the checkpoint has a chat template, else as text to continue.
    #[default]
    Auto,
    /// As text to continue.
    Text,
    /// As conversations, in a plain format if the checkpoint has no chat template.
    Chat,
}

impl std::str::FromStr for PromptStyle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "chat" => Ok(Self::Chat),
            _ => Err(format!("{text:?} is not one of auto, text, chat")),
        }
    }
}

/// A prompt that is left out because prompt and answer do not fit into the model's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The id of the prompt.
    pub prompt: String,
    /// The category of the prompt.
    pub category: String,
    /// The number of tokens in its longest turn.
    pub tokens: usize,
    /// The model's context length in tokens.
    pub context: usize,
}

/// The engines of all configurations.
pub struct Engines {
    engines: Vec<LoadedConfiguration>,
    template: ChatTemplate,
    prompts_as_chats: bool,
    /// The common request, without the temperatures of the configurations.
    request: Request,
}

/// A configuration with its engine.
struct LoadedConfiguration {
    name: String,
    engine: Engine,
    temperature: f32,
}

impl Engines {
    /// Loads the configurations. Those with the same weight type share their weights.
    ///
    /// # Errors
    /// If a configuration or the chat template cannot be loaded, or if there is no configuration.
    pub fn open(
        configurations: &[Configuration],
        request: Request,
        style: PromptStyle,
        loader: Loader<'_>,
    ) -> Result<Self, BenchError> {
        let mut loader = loader.sharing_weights();
        let mut engines = Vec::new();
        for configuration in configurations {
            let engine = Engine::open_with(&configuration.plan, &mut loader);
            let name = &configuration.name;
            let engine = engine.map_err(|cause| load_error(name, cause))?;
            let (name, temperature) = (name.clone(), configuration.temperature);
            engines.push(LoadedConfiguration { name, engine, temperature });
        }
        let no_configuration = BenchError::NoPrompts("there are no configurations to compare");
        let first = engines.first().ok_or(no_configuration)?;
        let template = first.engine.chat_template().map_err(|error| chat_error(error.into()))?;
        let prompts_as_chats = match style {
            PromptStyle::Auto => !template.is_plain(),
            PromptStyle::Text => false,
            PromptStyle::Chat => true,
        };
        Ok(Self { engines, template, prompts_as_chats, request })
    }

    /// Returns whether prompts with a single turn are conversations, too.
    #[must_use]
    pub fn prompts_as_chats(&self) -> bool {
        self.prompts_as_chats
    }

    /// Returns the common request, without the temperatures of the configurations.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the tokens of a prompt with one turn, as our engines get them.
    pub(crate) fn encode(&self, prompt: &Prompt) -> Result<Vec<TokenId>, BenchError> {
        let (Some(first), [turn]) = (self.engines.first(), &prompt.turns[..]) else {
            return Err(BenchError::NoPrompts("peers answer prompts with a single turn only"));
        };
        self.encode_turn(&first.engine, prompt, turn)
    }

    /// Returns the text of tokens.
    pub(crate) fn decode(&self, tokens: &[TokenId]) -> String {
        let first = self.engines.first();
        first.map_or(String::new(), |first| first.engine.tokenizer().decode(tokens))
    }

    /// Returns the log-probability that a configuration gives to its own token minus that of
    /// another one, in nats, at a position of its greedy answer. Returns `None` if the other token
    /// is not among its most probable ones.
    #[must_use]
    pub fn gap(
        &self,
        configuration: usize,
        prompt: &Prompt,
        position: usize,
        [own, other]: [TokenId; 2],
    ) -> Option<f64> {
        let LoadedConfiguration { engine, temperature, .. } = self.engines.get(configuration)?;
        let request = Request {
            sampling: SamplingOptions {
                temperature: *temperature,
                ..self.request.sampling.clone()
            },
            max_tokens: position + 1,
            logprobs: Some(Request::MAX_LOGPROBS),
            ..self.request.clone()
        };
        let tokens = self.encode(prompt).ok()?;
        let on_text = |_: &str| ControlFlow::Continue(());
        let answer = engine.generate_tokens(tokens, &request, on_text).ok()?;
        let logprobs = answer.logprobs?.into_iter().nth(position)?;
        let logprob = |token| logprobs.top.iter().find(|top| top.0 == token).map(|top| top.1);
        Some(f64::from(logprob(own)?) - f64::from(logprob(other)?))
    }

    /// Splits prompts into those that fit into the context with a whole answer, and those that do
    /// not.
    ///
    /// # Errors
    /// If a prompt cannot be encoded.
    pub fn fitting(&self, prompts: Vec<Prompt>) -> Result<(Vec<Prompt>, Vec<LeftOut>), BenchError> {
        let Some(LoadedConfiguration { engine, .. }) = self.engines.first() else {
            return Ok((prompts, Vec::new()));
        };
        let context = engine.config().max_position_embeddings;
        let (mut fitting, mut left_out) = (Vec::new(), Vec::new());
        for prompt in prompts {
            let tokens = self.longest_turn(engine, &prompt)?;
            if tokens + self.request.max_tokens <= context {
                fitting.push(prompt);
            } else {
                let Prompt { id: prompt, category, .. } = prompt;
                left_out.push(LeftOut { prompt, category, tokens, context });
            }
        }
        Ok((fitting, left_out))
    }

    fn longest_turn(&self, engine: &Engine, prompt: &Prompt) -> Result<usize, BenchError> {
        let mut longest = 0;
        for turn in &prompt.turns {
            longest = longest.max(self.encode_turn(engine, prompt, turn)?.len());
        }
        Ok(longest)
    }

    fn encode_turn(
        &self,
        engine: &Engine,
        prompt: &Prompt,
        turn: &str,
    ) -> Result<Vec<TokenId>, BenchError> {
        let encoded = match self.is_chat(prompt) {
            true => self.template.encode(&[Message::user(turn)], engine.tokenizer()),
            false => engine.tokenizer().encode(turn).map_err(EncodeError::Tokenizer),
        };
        let context = engine.config().max_position_embeddings;
        encoded.map_err(|error| {
            chat_error(match error {
                EncodeError::Template(error) => error.into(),
                EncodeError::Tokenizer(error) => ForerunError::from(error).into(),
                EncodeError::TooLong { bytes, tokens, .. } => {
                    ChatError::FarTooLong { bytes, tokens, context }
                }
            })
        })
    }

    fn is_chat(&self, prompt: &Prompt) -> bool {
        self.prompts_as_chats || prompt.turns.len() > 1
    }

    fn turns(
        &self,
        configuration: &LoadedConfiguration,
        prompt: &Prompt,
        sample: bool,
    ) -> Result<Vec<TurnRecord>, ChatError> {
        let LoadedConfiguration { engine, temperature, .. } = configuration;
        let mut request = self.request.clone();
        request.sampling.temperature = *temperature;
        let request = &request;
        let on_text = |_: &str| ControlFlow::Continue(());
        let sample = |turn: usize| (sample && turn == 0).then_some(SAMPLE_SPANS);
        if !self.is_chat(prompt) {
            let answer = engine.complete(&prompt.turns[0], request)?;
            return Ok(vec![TurnRecord::of(&answer, sample(0))]);
        }
        let mut chat = engine.chat()?;
        let mut turns = Vec::new();
        for (index, turn) in prompt.turns.iter().enumerate() {
            let reply = chat.send(turn, request, on_text)?;
            turns.push(TurnRecord::of(&reply.answer, sample(index)));
        }
        Ok(turns)
    }
}

fn load_error(name: &str, cause: ForerunError) -> BenchError {
    BenchError::Load { name: name.to_owned(), cause: Box::new(cause) }
}

fn chat_error(error: ChatError) -> BenchError {
    BenchError::Chat(Box::new(error))
}

impl Answerer for Engines {
    fn answer(
        &mut self,
        configuration: usize,
        prompt: &Prompt,
        repeat: usize,
        sample: bool,
    ) -> Result<AnswerRecord, BenchError> {
        let loaded = &self.engines[configuration];
        reset_peak_memory();
        let turns = self.turns(loaded, prompt, sample).map_err(|cause| BenchError::Answer {
            configuration: loaded.name.clone(),
            prompt: prompt.id.clone(),
            cause: Box::new(cause),
        })?;
        Ok(AnswerRecord {
            configuration: loaded.name.clone(),
            prompt: prompt.id.clone(),
            category: prompt.category.clone(),
            repeat,
            turns,
            peak_memory_bytes: peak_memory_bytes(),
        })
    }
}
