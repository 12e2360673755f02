//! One simulated answer, beside plain decoding's.

use crate::{
    Acceptance, Cancellation, Cost, Device, Fault, ForwardCost, Oracle, SimCluster, SimError,
};
use forerun_core::trace::Trace;
use forerun_core::{DraftShape, Role, Sampling, SequenceId, TokenId};
use forerun_decode::{
    Autoregressive, Controller, Decoder, DraftLength, Limits, Sequence, Speculative, Statistics,
    generate,
};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// Tokens of the prompt: how many there are costs what [`Cost::first_ns`] says.
const PROMPT: usize = 1;

/// A drafter and a target on devices of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// What the drafter's passes take.
    pub draft: Cost,
    /// What the target's passes take.
    pub target: Cost,
    /// Where drafts are right.
    pub acceptance: Acceptance,
    /// Tokens drafted in a row; 0 drafts none.
    pub draft_tokens: usize,
    /// Tokens to generate.
    pub max_tokens: usize,
    /// Chooses the text and where drafts err.
    pub seed: u64,
    /// What becomes of cancelled jobs.
    pub cancellation: Cancellation,
    /// What goes wrong: device 0 is the drafter's, 1 the target's.
    pub faults: Vec<Fault>,
}

/// What came of a simulation. All times are simulated.
#[derive(Clone, Debug)]
pub struct SimulatedAnswer {
    /// Nanoseconds until the last token.
    pub total_ns: u64,
    /// Nanoseconds that plain decoding takes for the same text.
    pub plain_ns: u64,
    /// What was counted.
    pub statistics: Statistics,
    /// What ran when.
    pub trace: Trace,
}

impl Simulation {
    /// Decodes speculatively, and plainly.
    ///
    /// # Errors
    /// If an option is out of range, or a fault ends the answer.
    pub fn run(&self) -> Result<SimulatedAnswer, SimError> {
        if self.max_tokens == 0 {
            return Err(SimError::Range { option: "the number of tokens", found: "0".into() });
        }
        if let Acceptance::Iid(probability) = self.acceptance
            && !(0.0..=1.0).contains(&probability)
        {
            let found = probability.to_string();
            return Err(SimError::Range { option: "the acceptance probability", found });
        }
        let shape = DraftShape::Chain { length: self.draft_tokens };
        let controller = Controller::new(shape, DraftLength::Fixed);
        let (drafting, statistics) = self.decode(&mut Speculative::new(controller))?;
        let (plain, _) = self.decode(&mut Autoregressive)?;
        let (total_ns, plain_ns) = (drafting.now_ns(), plain.now_ns());
        Ok(SimulatedAnswer { total_ns, plain_ns, statistics, trace: drafting.into_trace() })
    }

    fn decode(&self, decoder: &mut dyn Decoder) -> Result<(SimCluster, Statistics), SimError> {
        let oracle = Oracle { seed: self.seed, drafters: vec![self.acceptance.clone()] };
        let device = |name: &str, role, cost: &Cost| Device {
            name: name.to_owned(),
            roles: vec![role],
            cost: cost.clone(),
        };
        let devices = vec![
            device("drafter", Role::Drafter(0), &self.draft),
            device("target", Role::Target(0), &self.target),
        ];
        let prompt: Vec<TokenId> = oracle.text(PROMPT);
        let mut cluster = SimCluster::new(devices, oracle, self.cancellation, self.faults.clone())?;
        let limits =
            Limits { max_tokens: self.max_tokens, context_length: usize::MAX, eos: Vec::new() };
        let mut sequence = Sequence::new(SequenceId(0), prompt, Sampling::greedy(), limits);
        generate(decoder, &mut sequence, &mut cluster, |_| ControlFlow::Continue(()))
            .map_err(|error| SimError::Decode(error.to_string()))?;
        Ok((cluster, sequence.statistics().clone()))
    }
}

impl Cost {
    /// Passes of `ns` for one row and `row_ns` more for each further one, in layers; the first one of a
    /// sequence may take something else.
    #[must_use]
    pub fn linear(ns: u64, row_ns: u64, first_ns: Option<u64>, layers: usize) -> Self {
        let forward = match row_ns {
            0 => ForwardCost::Constant { ns },
            _ => ForwardCost::Rows { points: vec![(1, ns), (2, ns + row_ns)] },
        };
        Self { forward, first_ns, layers, link_ns: 0 }
    }
}
