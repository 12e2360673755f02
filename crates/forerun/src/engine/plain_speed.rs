//! The speed of plain decoding, with which methods are compared.

use super::Engine;
use crate::answer_stream::AnswerEvent;
use crate::error::ForerunError;
use crate::plan::Method;
use crate::request::Request;
use forerun_core::TokenId;
use forerun_runtime::Canceller;
use std::time::{Duration, Instant};

impl Engine {
    /// Measures how long plain decoding takes for a token after the given tokens, in nanoseconds:
    /// the median of `count` tokens. Returns `None` if the context has no room for them, if they
    /// would take more than four seconds, or if `canceller` stops the measurement before.
    ///
    /// # Errors
    /// As [`Engine::stream`].
    pub fn plain_token_ns(
        &self,
        tokens: Vec<TokenId>,
        count: usize,
        canceller: &Canceller,
    ) -> Result<Option<f64>, ForerunError> {
        const LONGEST: Duration = Duration::from_secs(4);
        let room = self.config.max_position_embeddings.saturating_sub(tokens.len());
        if room <= count {
            return Ok(None);
        }
        let request = Request { max_tokens: count + 1, ignore_eos: true, ..Request::default() };
        let stream = self.stream_tokens(tokens, &request, Method::Autoregressive, canceller)?;
        let (mut times, mut last, mut measured) = (Vec::new(), None, Duration::ZERO);
        for event in stream {
            if !matches!(event?, AnswerEvent::Token(_)) {
                continue;
            }
            let now = Instant::now();
            if let Some(last) = last.replace(now) {
                times.push(now - last);
                measured += now - last;
            }
            if measured * count as u32 > LONGEST * times.len() as u32 {
                return Ok(None);
            }
        }
        times.sort_unstable();
        let median = times.get(count / 2).filter(|_| times.len() == count);
        Ok(median.map(|time| time.as_nanos() as f64))
    }
}
