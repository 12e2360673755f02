//! The simulation of one answer.

use crate::{
    AcceptanceModel, Cancellation, Cost, Device, Fault, Oracle, SequenceCluster, SharedDevices,
    SimCluster, SimError, SimulatedMethod, Usage,
};
use forerun_core::trace::Trace;
use forerun_core::{Cluster, Role, Sampling, SequenceId, TokenId};
use forerun_decode::{Limits, Sequence, Statistics, generate};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// The number of tokens of a prompt that takes time ([`Cost::first_ns`], the same for any length).
/// DSI's replicas do not read so many along with other rows.
const PROMPT: usize = 64;

/// Returns the number of tokens in the prompt of simulations with devices of these costs: 1 if it
/// takes no time.
pub(crate) fn prompt_tokens<'a>(costs: impl IntoIterator<Item = &'a Cost>) -> usize {
    if costs.into_iter().any(|cost| cost.first_ns.is_some()) { PROMPT } else { 1 }
}

/// A simulation of drafters and target replicas, each on its own device.
///
/// ```
/// use forerun_sim::Parameters;
///
/// // A target pass takes 30 ms, a draft pass 3 ms; 80 % of the draft tokens are right.
/// let simulation = Parameters::default().simulation(None)?;
/// let answer = simulation.run()?;
/// assert!(answer.total_ns < simulation.plain_ns()?);
/// # Ok::<(), forerun_sim::SimError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// The decoding method.
    pub method: SimulatedMethod,
    /// The pass times of each drafter.
    pub drafters: Vec<Cost>,
    /// The pass times of each target replica.
    pub targets: Vec<Cost>,
    /// The acceptance of each drafter. The last entry applies to all further drafters.
    pub acceptance: Vec<AcceptanceModel>,
    /// The draft length in tokens; 0 turns drafting off.
    pub draft_tokens: usize,
    /// The number of tokens to generate.
    pub max_tokens: usize,
    /// The seed of the text and of the draft errors.
    pub seed: u64,
    /// When a cancelled job stops.
    pub cancellation: Cancellation,
    /// The faults of devices. The drafters are the first devices, followed by the targets.
    pub faults: Vec<Fault>,
}

/// The result of a simulation. All times are simulated.
#[derive(Clone, Debug)]
pub struct SimulatedAnswer {
    /// The time until the last token, in nanoseconds.
    pub total_ns: u64,
    /// The decoder's counters.
    pub statistics: Statistics,
    /// The work of all drafters together.
    pub drafters: Usage,
    /// The work of all targets together.
    pub targets: Usage,
    /// The trace of all jobs; empty for [`Simulation::measure`].
    pub trace: Trace,
}

/// The result of a simulation of several answers at the same time. All times are simulated.
#[derive(Clone, Debug)]
pub struct SimulatedAnswers {
    /// The time until the last token of all answers, in nanoseconds.
    pub total_ns: u64,
    /// For each answer, the time until its last token in nanoseconds, and the decoder's counters.
    pub answers: Vec<(u64, Statistics)>,
    /// The work of all drafters together.
    pub drafters: Usage,
    /// The work of all targets together.
    pub targets: Usage,
    /// The trace of all jobs.
    pub trace: Trace,
}

impl Simulation {
    /// Simulates several answers at the same time, which share the devices, and records a trace.
    /// Each has a text of its own; the first one is that of [`Simulation::run`].
    ///
    /// ```
    /// use forerun_sim::Parameters;
    ///
    /// // If further rows cost nothing, four answers take as long as one.
    /// let parameters = Parameters { acceptance: Some(1.0), ..Parameters::default() };
    /// let simulation = parameters.simulation(None)?;
    /// assert_eq!(simulation.run_together(4)?.total_ns, simulation.run()?.total_ns);
    /// # Ok::<(), forerun_sim::SimError>(())
    /// ```
    ///
    /// # Errors
    /// The same as for [`Simulation::run`], and [`SimError::Start`] if a decoder's thread cannot
    /// start.
    pub fn run_together(&self, sequences: usize) -> Result<SimulatedAnswers, SimError> {
        let mut cluster = self.cluster()?;
        let decode = |id| {
            move |cluster: &mut SequenceCluster<'_, '_>| {
                let statistics = self.generate(cluster, SequenceId(id))?;
                Ok((cluster.now_ns(), statistics))
            }
        };
        let answers = cluster.run_together((0..sequences as u64).map(decode).collect())?;
        let answers = answers.into_iter().collect::<Result<Vec<_>, SimError>>()?;
        let total_ns = answers.iter().map(|answer| answer.0).max().unwrap_or(0);
        let (drafters, targets) = usage(&cluster);
        Ok(SimulatedAnswers { total_ns, answers, drafters, targets, trace: cluster.into_trace() })
    }

    /// Simulates the answer and records a trace.
    ///
    /// # Errors
    /// If an option is out of range, or a fault makes the answer fail.
    pub fn run(&self) -> Result<SimulatedAnswer, SimError> {
        self.decode(self.cluster()?)
    }

    /// Simulates the answer without a trace, which is faster than [`Simulation::run`].
    ///
    /// # Errors
    /// The same as for [`Simulation::run`].
    pub fn measure(&self) -> Result<SimulatedAnswer, SimError> {
        self.decode(self.cluster()?.without_trace())
    }

    /// Simulates the answer with drafter and target on the same devices, without a trace.
    ///
    /// # Errors
    /// The same as for [`Simulation::run`].
    pub fn measure_on_shared_devices(
        &self,
        devices: SharedDevices,
    ) -> Result<SimulatedAnswer, SimError> {
        self.decode(self.cluster()?.without_trace().on_shared_devices(devices))
    }

    /// Returns the time of plain decoding for the same text, in nanoseconds.
    ///
    /// # Errors
    /// The same as for [`Simulation::run`].
    pub fn plain_ns(&self) -> Result<u64, SimError> {
        let plain = Self { method: SimulatedMethod::Autoregressive, ..self.clone() };
        Ok(plain.measure()?.total_ns)
    }

    /// Checks that all options are in range.
    ///
    /// # Errors
    /// Returns [`SimError::Range`] for the first option that is not.
    pub fn check(&self) -> Result<(), SimError> {
        let range = |option, found: String, expected| SimError::Range { option, found, expected };
        let zero = |option| range(option, "0".into(), "at least 1");
        if self.max_tokens == 0 {
            return Err(zero("`max_tokens`"));
        }
        if self.targets.is_empty() {
            return Err(zero("`targets`"));
        }
        if self.drafters.is_empty() {
            return Err(zero("`drafters`"));
        }
        for probability in self.acceptance.iter().flat_map(AcceptanceModel::probabilities) {
            if !(0.0..=1.0).contains(probability) {
                let found = probability.to_string();
                return Err(range("`acceptance`", found, "from 0 to 1"));
            }
        }
        Ok(())
    }

    /// Returns the oracle with the text and the acceptance of the drafters.
    pub(crate) fn oracle(&self) -> Oracle {
        Oracle { seed: self.seed, drafters: self.acceptance.clone() }
    }

    /// Returns the devices, the drafters before the targets. The name of an only drafter or target
    /// has no number.
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

    pub(crate) fn prompt_tokens(&self) -> usize {
        prompt_tokens(self.drafters.iter().chain(&self.targets))
    }

    fn cluster(&self) -> Result<SimCluster, SimError> {
        self.check()?;
        SimCluster::new(self.devices(), self.oracle(), self.cancellation, self.faults.clone())
    }

    /// Continues a prompt greedily on any cluster, with the method and the draft length of this
    /// simulation. Returns the generated tokens and the decoder's counters.
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
        let mut decoder = self.method.decoder(self);
        generate(&mut *decoder, &mut sequence, cluster, |_| ControlFlow::Continue(()))
            .map_err(|error| SimError::Decode(error.to_string()))?;
        Ok((sequence.generated().to_vec(), sequence.statistics().clone()))
    }

    /// Generates the whole answer and checks that it is the target's own text.
    pub(crate) fn generate(
        &self,
        cluster: &mut dyn Cluster,
        id: SequenceId,
    ) -> Result<Statistics, SimError> {
        let (oracle, prompt) = (self.oracle().of_sequence(id), self.prompt_tokens());
        let (answer, statistics) = self.generate_on(cluster, id, oracle.text(prompt))?;
        let is_text = (prompt..).zip(&answer).all(|(at, &token)| token == oracle.token(at));
        if is_text && answer.len() == self.max_tokens {
            return Ok(statistics);
        }
        Err(SimError::ChangedText)
    }

    fn decode(&self, mut cluster: SimCluster) -> Result<SimulatedAnswer, SimError> {
        let statistics = self.generate(&mut cluster, SequenceId(0))?;
        let (drafters, targets) = usage(&cluster);
        let total_ns = cluster.now_ns();
        Ok(SimulatedAnswer { total_ns, statistics, drafters, targets, trace: cluster.into_trace() })
    }
}

/// Returns the work of all drafters and of all targets.
fn usage(cluster: &SimCluster) -> (Usage, Usage) {
    let (mut drafters, mut targets) = (Usage::default(), Usage::default());
    for (device, usage) in cluster.usage() {
        let is_drafter = device.roles.iter().any(|role| matches!(role, Role::Drafter(_)));
        if is_drafter { &mut drafters } else { &mut targets }.add(usage);
    }
    (drafters, targets)
}
