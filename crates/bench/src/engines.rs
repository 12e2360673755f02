//! The configurations, loaded: all at once, so that they can take turns, with shared weights.

use crate::provenance::{peak_memory_bytes, reset_peak_memory};
use crate::record::{AnswerRecord, TurnRecord};
use crate::run::Answerer;
use crate::{BenchError, Configuration, Prompt};
use forerun::{
    Canceller, Chat, ChatError, ChatTemplate, EncodeError, Forerun, ForerunError, Loader,
    MAX_LOGPROBS, Message, Request, TokenId,
};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Spans that are kept of a sample timeline.
const SAMPLE_SPANS: usize = 48;

/// How prompts are put to the model. Prompts of several turns always are conversations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptStyle {
    /// As conversations where the checkpoint ships a chat template, else as text to continue.
    #[default]
    Auto,
    /// As text to continue.
    Text,
    /// As conversations, in a plain form where the checkpoint ships no template.
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

/// A prompt that the model cannot answer in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The prompt's id.
    pub prompt: String,
    /// Its category.
    pub category: String,
    /// Tokens of its longest turn.
    pub tokens: usize,
    /// Tokens that the model sees, which the answer needs a part of.
    pub context: usize,
}

/// Loaded configurations.
pub struct Engines {
    engines: Vec<Own>,
    /// Where the target's template is: each conversation reads its own.
    model: PathBuf,
    template: ChatTemplate,
    chats: bool,
    /// Without the configurations' temperatures.
    request: Request,
}

/// A configuration's engine.
struct Own {
    name: String,
    engine: Forerun,
    temperature: f32,
}

impl Engines {
    /// Loads the configurations; those of one weight type share their weights.
    ///
    /// # Errors
    /// Names the first that cannot be loaded.
    pub fn open(
        configurations: &[Configuration],
        request: Request,
        style: PromptStyle,
        loader: Loader<'_>,
    ) -> Result<Self, BenchError> {
        let mut loader = loader.sharing_weights();
        let mut engines = Vec::new();
        for configuration in configurations {
            let engine = Forerun::open_with(&configuration.plan, &mut loader);
            let name = &configuration.name;
            let engine = engine.map_err(|cause| load_error(name, cause))?;
            let (name, temperature) = (name.clone(), configuration.temperature);
            engines.push(Own { name, engine, temperature });
        }
        let first = engines.first().ok_or(BenchError::NoPrompts("no configuration"))?;
        let model = loader.locate(first.engine.plan().model());
        let model = model.map_err(|cause| load_error(&first.name, cause))?;
        let template =
            ChatTemplate::from_checkpoint(&model).map_err(|error| chat_error(error.into()))?;
        let chats = match style {
            PromptStyle::Auto => !template.is_plain(),
            PromptStyle::Text => false,
            PromptStyle::Chat => true,
        };
        Ok(Self { engines, model, template, chats, request })
    }

    /// Whether prompts of one turn are put as conversations, too.
    #[must_use]
    pub fn chats(&self) -> bool {
        self.chats
    }

    /// What every answer is asked with, but for its temperature.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// The tokens of a prompt of one turn, as our engines get them.
    pub(crate) fn encode(&self, prompt: &Prompt) -> Result<Vec<TokenId>, BenchError> {
        let (Some(own), [turn]) = (self.engines.first(), &prompt.turns[..]) else {
            return Err(BenchError::NoPrompts("peers answer prompts of one turn only"));
        };
        self.encode_turn(&own.engine, prompt, turn)
    }

    /// The text of tokens.
    pub(crate) fn decode(&self, tokens: &[TokenId]) -> String {
        let first = self.engines.first();
        first.map_or(String::new(), |own| own.engine.tokenizer().decode(tokens))
    }

    /// How much more probable a configuration finds its own token than another one, in nats, behind so
    /// many tokens of its greedy answer; `None` if the other is not among its best.
    #[must_use]
    pub fn gap(
        &self,
        configuration: usize,
        prompt: &Prompt,
        position: usize,
        [own, other]: [TokenId; 2],
    ) -> Option<f64> {
        let Own { engine, temperature, .. } = self.engines.get(configuration)?;
        let request = Request {
            max_tokens: position + 1,
            logprobs: Some(MAX_LOGPROBS),
            temperature: *temperature,
            ..self.request.clone()
        };
        let tokens = self.encode(prompt).ok()?;
        let on_text = |_: &str| ControlFlow::Continue(());
        let answer = engine.generate_tokens(tokens, &request, &Canceller::new(), on_text).ok()?;
        let place = answer.logprobs?.into_iter().nth(position)?;
        let of = |token| place.top.iter().find(|known| known.0 == token).map(|known| known.1);
        Some(f64::from(of(own)?) - f64::from(of(other)?))
    }

    /// The prompts whose every turn leaves room for a whole answer, and those that do not.
    ///
    /// # Errors
    /// If a prompt cannot be encoded.
    pub fn fitting(&self, prompts: Vec<Prompt>) -> Result<(Vec<Prompt>, Vec<LeftOut>), BenchError> {
        let Some(Own { engine, .. }) = self.engines.first() else {
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

    fn longest_turn(&self, engine: &Forerun, prompt: &Prompt) -> Result<usize, BenchError> {
        let mut longest = 0;
        for turn in &prompt.turns {
            longest = longest.max(self.encode_turn(engine, prompt, turn)?.len());
        }
        Ok(longest)
    }

    fn encode_turn(
        &self,
        engine: &Forerun,
        prompt: &Prompt,
        turn: &str,
    ) -> Result<Vec<TokenId>, BenchError> {
        let encoded = match self.is_chat(prompt) {
            true => self.template.encode(&[Message::user(turn)], engine.tokenizer()),
            false => engine.tokenizer().encode(turn).map_err(EncodeError::Tokenizer),
        };
        encoded.map_err(|error| chat_error(error.into()))
    }

    fn is_chat(&self, prompt: &Prompt) -> bool {
        self.chats || prompt.turns.len() > 1
    }

    fn turns(
        &self,
        own: &Own,
        prompt: &Prompt,
        sample: bool,
    ) -> Result<Vec<TurnRecord>, ChatError> {
        let Own { engine, temperature, .. } = own;
        let request = &Request { temperature: *temperature, ..self.request.clone() };
        let canceller = Canceller::new();
        let on_text = |_: &str| ControlFlow::Continue(());
        let sample = |turn: usize| (sample && turn == 0).then_some(SAMPLE_SPANS);
        if !self.is_chat(prompt) {
            let answer = engine.complete(&prompt.turns[0], request)?;
            return Ok(vec![TurnRecord::of(&answer, sample(0))]);
        }
        let mut chat = Chat::new(engine, ChatTemplate::from_checkpoint(&self.model)?);
        let mut turns = Vec::new();
        for (index, turn) in prompt.turns.iter().enumerate() {
            let reply = chat.send(turn, request, &canceller, on_text)?;
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
        let own = &self.engines[configuration];
        reset_peak_memory();
        let turns = self.turns(own, prompt, sample).map_err(|cause| BenchError::Answer {
            configuration: own.name.clone(),
            prompt: prompt.id.clone(),
            cause: Box::new(cause),
        })?;
        Ok(AnswerRecord {
            configuration: own.name.clone(),
            prompt: prompt.id.clone(),
            category: prompt.category.clone(),
            repeat,
            turns,
            peak_memory_bytes: peak_memory_bytes(),
        })
    }
}
