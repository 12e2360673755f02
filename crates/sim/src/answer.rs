//! One simulated answer, beside plain decoding's.

use crate::{
    AcceptanceModel, Cancellation, Cost, Device, Fault, Oracle, SharedDevices, SimCluster,
    SimError, SimulatedMethod, Usage,
};
use forerun_core::trace::Trace;
use forerun_core::{Cluster, Role, Sampling, SequenceId, TokenId};
use forerun_decode::{Limits, Sequence, Statistics, generate};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// Tokens of the prompt: how many there are costs what [`Cost::first_ns`] says.
pub(crate) const PROMPT: usize = 1;

/// Drafters and target replicas, each on a device of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// When tokens are drafted and verified.
    pub method: SimulatedMethod,
    /// What each drafter's passes take.
    pub drafters: Vec<Cost>,
    /// What each target replica's passes take.
    pub targets: Vec<Cost>,
    /// Where each drafter's drafts are right; the last one goes on.
    pub acceptance: Vec<AcceptanceModel>,
    /// Tokens drafted in a row; 0 drafts none.
    pub draft_tokens: usize,
    /// Tokens to generate.
    pub max_tokens: usize,
    /// Chooses the text and where drafts err.
    pub seed: u64,
    /// What becomes of cancelled jobs.
    pub cancellation: Cancellation,
    /// What goes wrong; the drafters are the first devices, then come the targets.
    pub faults: Vec<Fault>,
}

/// What came of a simulation. All times are simulated.
#[derive(Clone, Debug)]
pub struct SimulatedAnswer {
    /// Nanoseconds until the last token.
    pub total_ns: u64,
    /// What was counted.
    pub statistics: Statistics,
    /// What the drafters did, all together.
    pub drafters: Usage,
    /// What the targets did, all together.
    pub targets: Usage,
    /// What ran when; empty where it was not asked for.
    pub trace: Trace,
}

impl Simulation {
    /// Decodes, with a trace.
    ///
    /// # Errors
    /// If an option is out of range, or a fault ends the answer.
    pub fn run(&self) -> Result<SimulatedAnswer, SimError> {
        self.decode(self.cluster()?)
    }

    /// Decodes without a trace.
    ///
    /// # Errors
    /// As [`Simulation::run`].
    pub fn measure(&self) -> Result<SimulatedAnswer, SimError> {
        self.decode(self.cluster()?.without_trace())
    }

    /// The same where drafter and target are on the devices of a pipeline.
    ///
    /// # Errors
    /// As [`Simulation::run`].
    pub fn measure_on(&self, pipeline: SharedDevices) -> Result<SimulatedAnswer, SimError> {
        self.decode(self.cluster()?.without_trace().on(pipeline))
    }

    /// Nanoseconds that plain decoding takes for the same text.
    ///
    /// # Errors
    /// As [`Simulation::run`].
    pub fn plain_ns(&self) -> Result<u64, SimError> {
        let plain = Self { method: SimulatedMethod::Autoregressive, ..self.clone() };
        Ok(plain.measure()?.total_ns)
    }

    /// Checks options that no type keeps in their range.
    ///
    /// # Errors
    /// If one is not.
    pub fn check(&self) -> Result<(), SimError> {
        let range = |option, found: String, expected| SimError::Range { option, found, expected };
        let none = |option| range(option, "0".into(), "at least 1");
        if self.max_tokens == 0 {
            return Err(none("the number of tokens"));
        }
        if self.targets.is_empty() {
            return Err(none("the number of targets"));
        }
        if self.drafters.is_empty() {
            return Err(none("the number of drafters"));
        }
        let probabilities = self.acceptance.iter().flat_map(|acceptance| match acceptance {
            AcceptanceModel::Iid(probability) => std::slice::from_ref(probability),
            AcceptanceModel::ByPlace(probabilities) => probabilities,
            AcceptanceModel::Recorded(_) => &[],
        });
        for probability in probabilities {
            if !(0.0..=1.0).contains(probability) {
                let found = probability.to_string();
                return Err(range("the acceptance probability", found, "0 to 1"));
            }
        }
        Ok(())
    }

    /// The text and who drafts it.
    pub(crate) fn oracle(&self) -> Oracle {
        Oracle { seed: self.seed, drafters: self.acceptance.clone() }
    }

    /// The devices: drafters, then targets. Where a role has one device, its name has no number.
    pub(crate) fn devices(&self) -> Vec<Device> {
        fn of<'a>(
            name: &'a str,
            role: fn(usize) -> Role,
            costs: &'a [Cost],
        ) -> impl Iterator<Item = Device> + 'a {
            let single = costs.len() == 1;
            costs.iter().enumerate().map(move |(index, cost)| Device {
                name: if single { name.to_owned() } else { format!("{name} {index}") },
                roles: vec![role(index)],
                cost: cost.clone(),
            })
        }
        let drafters = of("drafter", Role::Drafter, &self.drafters);
        drafters.chain(of("target", Role::Target, &self.targets)).collect()
    }

    fn cluster(&self) -> Result<SimCluster, SimError> {
        self.check()?;
        SimCluster::new(self.devices(), self.oracle(), self.cancellation, self.faults.clone())
    }

    /// Continues a prompt on any cluster, greedily, with the method and the draft length of this
    /// simulation. Returns the answer's tokens and what was counted.
    ///
    /// # Errors
    /// If a job fails.
    pub fn generate_on(
        &self,
        cluster: &mut dyn Cluster,
        id: SequenceId,
        prompt: Vec<TokenId>,
    ) -> Result<(Vec<TokenId>, Statistics), SimError> {
        let limits =
            Limits { max_tokens: self.max_tokens, context_length: usize::MAX, eos: Vec::new() };
        let mut sequence = Sequence::new(id, prompt, Sampling::greedy(), limits);
        let (targets, drafters) = (self.targets.len(), self.drafters.len());
        let mut decoder = self.method.decoder(self.draft_tokens, targets, drafters);
        generate(&mut *decoder, &mut sequence, cluster, |_| ControlFlow::Continue(()))
            .map_err(|error| SimError::Decode(error.to_string()))?;
        Ok((sequence.generated().to_vec(), sequence.statistics().clone()))
    }

    /// The whole answer of the oracle, which must be the target's own text whatever was drafted.
    pub(crate) fn generate(&self, cluster: &mut dyn Cluster) -> Result<Statistics, SimError> {
        let oracle = self.oracle();
        let (answer, statistics) = self.generate_on(cluster, SequenceId(0), oracle.text(PROMPT))?;
        let is_text = (PROMPT..).zip(&answer).all(|(at, &token)| token == oracle.token(at));
        if is_text && answer.len() == self.max_tokens {
            return Ok(statistics);
        }
        Err(SimError::OtherText)
    }

    fn decode(&self, mut cluster: SimCluster) -> Result<SimulatedAnswer, SimError> {
        let statistics = self.generate(&mut cluster)?;
        let (mut drafters, mut targets) = (Usage::default(), Usage::default());
        for (device, usage) in cluster.usage() {
            let drafts = device.roles.iter().any(|role| matches!(role, Role::Drafter(_)));
            if drafts { &mut drafters } else { &mut targets }.add(usage);
        }
        let total_ns = cluster.now_ns();
        Ok(SimulatedAnswer { total_ns, statistics, drafters, targets, trace: cluster.into_trace() })
    }
}
