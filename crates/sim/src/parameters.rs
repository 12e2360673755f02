//! The parameters of a simulation, in milliseconds.

use crate::calibration::ns;
use crate::{
    AcceptanceModel, Calibration, Cancellation, Cost, ForwardCost, SimError, SimulatedMethod,
    Simulation,
};
use forerun_lm::LayerGroups;
use serde::{Deserialize, Serialize};

/// The parameters of a simulation, named as in options and sweep files.
///
/// If a parameter is `None`, its value comes from the calibration. Without a calibration, it has
/// the default given below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Parameters {
    /// The decoding method.
    pub method: SimulatedMethod,
    /// The time of a target pass over one row, in milliseconds. Default: 30.
    pub target_ms: Option<f64>,
    /// The time of the target's first pass, which includes the prompt. Default: the same as other
    /// passes.
    pub target_first_ms: Option<f64>,
    /// The time that each further row adds to a target pass. Default: 0.
    pub row_ms: Option<f64>,
    /// The number of target replicas. 0: as many as the drafters keep busy (DSI, equation 1, for
    /// each drafter).
    pub targets: usize,
    /// The time of a drafter pass. Default: 3.
    pub draft_ms: Option<f64>,
    /// The time of the drafter's first pass. Default: the same as other passes.
    pub draft_first_ms: Option<f64>,
    /// The time of each further pass of a draft. 0: the drafter drafts all of its tokens in one
    /// pass. Default: the same as the first one.
    pub draft_next_ms: Option<f64>,
    /// The number of drafters. DSI uses all of them; every other method uses the first one.
    pub drafters: usize,
    /// The probability that a draft token is the target's. Default: 0.8.
    pub acceptance: Option<f64>,
    /// The draft length in tokens.
    pub draft_tokens: usize,
    /// The number of tokens to generate.
    pub max_tokens: usize,
    /// The seed of the text and of the draft errors; with a calibration, the index of the prompt.
    pub seed: u64,
    /// When a cancelled job stops.
    pub cancel: Cancellation,
    /// The number of layers in a pass. Default: 32.
    pub layers: Option<usize>,
    /// The latency from the decoder to a device, and back again. Default: 0.
    pub link_ms: Option<f64>,
    /// The number of layers that a layer-parallel drafter computes at a time. 0: an ordinary
    /// drafter with passes of `draft_ms`.
    pub layer_parallel: usize,
    /// The time of the attention of one layer of a layer-parallel drafter.
    pub draft_attention_ms: f64,
    /// The time of the MLP of one layer of a layer-parallel drafter.
    pub draft_mlp_ms: f64,
    /// The time of gathering the attention outputs of a group of layers.
    pub draft_communication_ms: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            method: SimulatedMethod::default(),
            target_ms: None,
            target_first_ms: None,
            row_ms: None,
            targets: 1,
            draft_ms: None,
            draft_first_ms: None,
            draft_next_ms: None,
            drafters: 1,
            acceptance: None,
            draft_tokens: 5,
            max_tokens: 100,
            seed: 0,
            cancel: Cancellation::Layer,
            layers: None,
            link_ms: None,
            layer_parallel: 0,
            draft_attention_ms: 0.0,
            draft_mlp_ms: 0.0,
            draft_communication_ms: 0.0,
        }
    }
}

// Defaults without a calibration.
const TARGET_MS: f64 = 30.0;
const DRAFT_MS: f64 = 3.0;
const ACCEPTANCE: f64 = 0.8;
const LAYERS: usize = 32;
/// Largest number of devices for each role.
const MAX_DEVICES: usize = 1024;

/// Returns the number of target replicas that a drafter keeps busy (DSI, equation 1).
pub(crate) fn busy_targets(target_ns: u64, draft_ns: u64, lookahead: usize) -> usize {
    let task_ns = lookahead.max(1) as u64 * draft_ns.max(1);
    target_ns.div_ceil(task_ns).max(1) as usize
}

impl Parameters {
    /// The names of all parameters, in the order of [`Parameters::values`].
    pub const NAMES: [&str; 20] = [
        "method",
        "target-ms",
        "target-first-ms",
        "row-ms",
        "targets",
        "draft-ms",
        "draft-first-ms",
        "draft-next-ms",
        "drafters",
        "acceptance",
        "draft-tokens",
        "max-tokens",
        "seed",
        "cancel",
        "layers",
        "link-ms",
        "layer-parallel",
        "draft-attention-ms",
        "draft-mlp-ms",
        "draft-communication-ms",
    ];

    /// Returns all values as text, in the order of [`Parameters::NAMES`]. A value that comes from a
    /// calibration is empty.
    #[must_use]
    pub fn values(&self, calibrated: bool) -> [String; 20] {
        let or = |given: Option<f64>, default: f64| match given {
            Some(value) => value.to_string(),
            None if calibrated => String::new(),
            None => default.to_string(),
        };
        let optional = |given: Option<f64>| given.map_or(String::new(), |value| value.to_string());
        let layers = match self.layers {
            Some(layers) => layers.to_string(),
            None if calibrated => String::new(),
            None => LAYERS.to_string(),
        };
        [
            self.method.to_string(),
            or(self.target_ms, TARGET_MS),
            optional(self.target_first_ms),
            or(self.row_ms, 0.0),
            self.targets.to_string(),
            or(self.draft_ms, DRAFT_MS),
            optional(self.draft_first_ms),
            optional(self.draft_next_ms),
            self.drafters.to_string(),
            or(self.acceptance, ACCEPTANCE),
            self.draft_tokens.to_string(),
            self.max_tokens.to_string(),
            self.seed.to_string(),
            self.cancel.to_string(),
            layers,
            or(self.link_ms, 0.0),
            self.layer_parallel.to_string(),
            self.draft_attention_ms.to_string(),
            self.draft_mlp_ms.to_string(),
            self.draft_communication_ms.to_string(),
        ]
    }

    /// Returns the simulation of these parameters. Missing values come from `calibration`.
    ///
    /// # Errors
    /// Returns [`SimError::Range`] if a value is out of range.
    pub fn simulation(&self, calibration: Option<&Calibration>) -> Result<Simulation, SimError> {
        let (target, drafter) = (self.target(calibration)?, self.drafter(calibration)?);
        let needed = || {
            let target_ns = target.forward.ns(self.draft_tokens + 1);
            busy_targets(target_ns, drafter.forward.ns(1), self.draft_tokens) * self.drafters
        };
        let targets = if self.targets == 0 { needed() } else { self.targets };
        for (option, count) in [("`targets`", targets), ("`drafters`", self.drafters)] {
            if !(1..=MAX_DEVICES).contains(&count) {
                let (found, expected) = (count.to_string(), "from 1 to 1024");
                return Err(SimError::Range { option, found, expected });
            }
        }
        let acceptance = match (self.acceptance, calibration) {
            (None, Some(calibration)) => calibration.acceptance(self.seed),
            (given, _) => AcceptanceModel::Iid(given.unwrap_or(ACCEPTANCE)),
        };
        let simulation = Simulation {
            method: self.method,
            drafters: vec![drafter; self.drafters],
            targets: vec![target; targets],
            acceptance: vec![acceptance],
            draft_tokens: self.draft_tokens,
            max_tokens: self.max_tokens,
            seed: self.seed,
            cancellation: self.cancel,
            faults: Vec::new(),
        };
        simulation.check()?;
        Ok(simulation)
    }

    fn target(&self, calibration: Option<&Calibration>) -> Result<Cost, SimError> {
        let mut cost = match calibration {
            Some(calibration) if self.target_ms.is_none() && self.row_ms.is_none() => {
                calibration.target_cost()?
            }
            _ => {
                let ns_of_one = ns("`target_ms`", self.target_ms.unwrap_or(TARGET_MS))?;
                Cost::linear(ns_of_one, ns("`row_ms`", self.row_ms.unwrap_or(0.0))?)
            }
        };
        self.adjust(&mut cost, ("`target_first_ms`", self.target_first_ms))?;
        Ok(cost)
    }

    fn drafter(&self, calibration: Option<&Calibration>) -> Result<Cost, SimError> {
        let mut cost = match calibration {
            _ if self.layer_parallel > 0 => {
                let layers = self.layers.unwrap_or(LAYERS);
                let groups = LayerGroups::parallel(layers, self.layer_parallel);
                let forward = ForwardCost::Layers {
                    attention_ns: ns("`draft_attention_ms`", self.draft_attention_ms)?,
                    mlp_ns: ns("`draft_mlp_ms`", self.draft_mlp_ms)?,
                    communication_ns: ns("`draft_communication_ms`", self.draft_communication_ms)?,
                    groups: groups.iter().map(|group| group.len()).collect(),
                };
                Cost { forward, ..Cost::linear(0, 0) }
            }
            Some(calibration) if self.draft_ms.is_none() => calibration.drafter_cost()?,
            _ => Cost::linear(ns("`draft_ms`", self.draft_ms.unwrap_or(DRAFT_MS))?, 0),
        };
        if let Some(ms) = self.draft_next_ms {
            if self.layer_parallel > 0 {
                let expected =
                    "unset with `layer_parallel`, which gives the time of further passes";
                let (option, found) = ("`draft_next_ms`", ms.to_string());
                return Err(SimError::Range { option, found, expected });
            }
            cost.next_ns = Some(ns("`draft_next_ms`", ms)?);
        }
        self.adjust(&mut cost, ("`draft_first_ms`", self.draft_first_ms))?;
        Ok(cost)
    }

    /// Replaces measured values by those that are given explicitly.
    fn adjust(&self, cost: &mut Cost, first: (&'static str, Option<f64>)) -> Result<(), SimError> {
        if let (option, Some(ms)) = first {
            cost.first_ns = Some(ns(option, ms)?);
        }
        if let Some(ms) = self.link_ms {
            cost.link_ns = ns("`link_ms`", ms)?;
        }
        if let Some(layers) = self.layers {
            cost.layers = layers;
        }
        Ok(())
    }
}

impl Cost {
    /// Returns the cost of passes that take `ns` for one row and `row_ns` more for each further
    /// row.
    #[must_use]
    pub fn linear(ns: u64, row_ns: u64) -> Self {
        let forward = match row_ns {
            0 => ForwardCost::Constant { ns },
            _ => ForwardCost::Rows { points: vec![(1, ns), (2, ns + row_ns)] },
        };
        Self { forward, layers: LAYERS, ..Self::constant(ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_have_the_same_order() {
        let parameters = Parameters {
            target_first_ms: Some(1.5),
            draft_first_ms: Some(2.5),
            draft_next_ms: Some(1.25),
            target_ms: Some(7.0),
            row_ms: Some(0.25),
            draft_ms: Some(0.5),
            acceptance: Some(0.9),
            link_ms: Some(0.125),
            layers: Some(12),
            ..Parameters::default()
        };
        let json = serde_json::to_value(&parameters).unwrap();
        assert_eq!(json.as_object().unwrap().len(), Parameters::NAMES.len());
        for (name, value) in Parameters::NAMES.iter().zip(parameters.values(false)) {
            let expected = match &json[name] {
                serde_json::Value::String(text) => text.clone(),
                number => number.as_f64().unwrap().to_string(),
            };
            assert_eq!(value, expected, "{name}");
        }
    }

    #[test]
    fn zero_targets_means_as_many_as_the_drafter_keeps_busy() {
        let targets = |draft_tokens, targets| {
            let parameters = Parameters { draft_tokens, targets, ..Parameters::default() };
            parameters.simulation(None).map(|simulation| simulation.targets.len())
        };
        assert_eq!([targets(1, 0), targets(3, 0), targets(20, 0)], [Ok(10), Ok(4), Ok(1)]);
        assert_eq!((targets(1, 7), targets(0, 0)), (Ok(7), Ok(10)));
        let instant = Parameters { draft_ms: Some(0.0), targets: 0, ..Parameters::default() };
        let error = instant.simulation(None).unwrap_err().to_string();
        assert!(error.starts_with("`targets` is 6000000"), "{error}");
    }

    /// A draft of five tokens takes one pass, also the one that PEARL makes ahead.
    #[test]
    fn a_drafter_of_one_pass_is_simulated() {
        let total_ms = |method: &str| {
            let parameters = Parameters {
                method: method.parse().unwrap(),
                draft_ms: Some(4.0),
                draft_next_ms: Some(0.0),
                max_tokens: 13,
                acceptance: Some(1.0),
                ..Parameters::default()
            };
            parameters.simulation(None).unwrap().measure().unwrap().total_ns / 1_000_000
        };
        // Six tokens in each of two rounds, and the last token alone. PEARL's first pass commits a
        // token.
        assert_eq!([total_ms("speculative"), total_ms("pearl-paper")], [2 * 34 + 30, 4 * 30]);
    }

    #[test]
    fn a_layer_parallel_drafter_is_simulated() {
        let parameters = Parameters {
            layer_parallel: 4,
            layers: Some(32),
            draft_attention_ms: 0.2,
            draft_mlp_ms: 0.1,
            draft_communication_ms: 0.05,
            draft_tokens: 3,
            max_tokens: 4,
            acceptance: Some(1.0),
            ..Parameters::default()
        };
        let simulation = parameters.simulation(None).unwrap();
        // The first pass calibrates layer by layer. The other two have 10 groups; 8 of them gather.
        let draft_ns = 32 * 300_000 + 2 * (10 * 200_000 + 8 * 50_000 + 32 * 100_000);
        assert_eq!(simulation.measure().unwrap().total_ns, draft_ns + 30_000_000);
    }

    #[test]
    fn a_layer_parallel_drafter_has_its_own_time_of_further_passes() {
        let parameters =
            Parameters { layer_parallel: 4, draft_next_ms: Some(0.0), ..Parameters::default() };
        let error = parameters.simulation(None).unwrap_err().to_string();
        assert!(
            error.starts_with("`draft_next_ms` is 0, but must be unset with `layer_parallel`"),
            "{error}"
        );
    }

    #[test]
    fn explicit_parameters_override_the_calibration() {
        let text = "link-ms = 0\nprompt-tokens = 4\nagreement = ['11', '00']\n\
            [target]\nmodel = 'a'\nlayers = 2\nfirst-ms = 50\nrows-ms = [[1, 10], [3, 12]]\n\
            [drafter]\nmodel = 'b'\nlayers = 2\nfirst-ms = 9\nrows-ms = [[1, 1], [2, 1.5]]\n";
        let calibration = Calibration::parse(text).unwrap();
        let run = |parameters: Parameters| {
            let parameters = Parameters { max_tokens: 3, draft_tokens: 2, ..parameters };
            parameters.simulation(Some(&calibration)).unwrap().measure().unwrap().total_ns
        };
        // Prompt 0 agrees everywhere: one round of 9 + 1 and 50 ms, and 2 ms for the draft tokens.
        assert_eq!(run(Parameters::default()), 62_000_000);
        // Prompt 1 agrees nowhere: 9 + 1 + 52, then 1 + 11 with one draft token left, then 10.
        assert_eq!(run(Parameters { seed: 1, ..Parameters::default() }), 84_000_000);
        let given = Parameters { target_first_ms: Some(20.0), ..Parameters::default() };
        assert_eq!(run(given), 32_000_000);
    }
}
