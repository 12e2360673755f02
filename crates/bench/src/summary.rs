//! The table of a run: every metric, by configuration and category, over repeats.

use crate::layer_point::LayerPoint;
use crate::metrics::{Measured, Metric, Pool};
use crate::record::AnswerRecord;
use crate::versus::{SameText, Versus, versus};
use crate::{Contestant, LeftOut, Prompt, Provenance};
use forerun::Trace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the row of all categories.
pub const OVERALL: &str = "overall";
/// Where a setting says that models were made for the measurement, and how.
pub const SYNTHETIC_PAIR: &str = "made pair";

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// What was compared, in words: models, sampling, seed, tokens.
    pub setting: BTreeMap<String, String>,
    /// The starts of the program; an interrupted run has several.
    pub sessions: Vec<Provenance>,
    /// Prompts in each category, in the order of the suite.
    pub categories: Vec<Category>,
    /// Repeats.
    pub repeats: usize,
    /// Whether every answer was compared with autoregressive decoding's, and found equal.
    pub compared: bool,
    /// Prompts that do not fit the model's context with a whole answer, as `category: id`.
    pub left_out: Vec<String>,
    /// The configurations, each behind its baseline; then the peers'.
    pub configurations: Vec<ConfigurationSummary>,
    /// Ours against peers that draft alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versus: Vec<Versus>,
    /// How much of the peers' texts is ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub same_text: Vec<SameText>,
}

/// A category.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Category {
    /// Its name.
    pub name: String,
    /// Prompts that were answered.
    pub prompts: usize,
}

/// What a configuration came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigurationSummary {
    /// Its name.
    pub name: String,
    /// The options of `forerun generate` that mean the same.
    pub flags: String,
    /// The autoregressive decoding that it is compared with.
    pub baseline: String,
    /// Cores in total.
    pub cores: usize,
    /// Where it stands among those that compute layers in parallel, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<LayerPoint>,
    /// Its numbers by category, and those of all as [`OVERALL`].
    pub cells: BTreeMap<String, Cell>,
    /// The beginning of its first answer on its devices.
    pub sample: Option<Trace>,
}

/// A configuration on a category.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Answers in each repeat, each turn counted.
    pub answers: usize,
    /// What was measured; what there was nothing of is left out.
    pub metrics: BTreeMap<Metric, Measured>,
    /// Means and deviations over prompts, each prompt's repeats taken together.
    #[serde(default)]
    pub over_prompts: BTreeMap<Metric, Measured>,
    /// For every depth of drafts, accepted over tested.
    pub acceptance_per_position: Vec<Option<Measured>>,
}

impl Cell {
    /// A metric, if it was measured.
    #[must_use]
    pub fn get(&self, metric: Metric) -> Option<Measured> {
        self.metrics.get(&metric).copied()
    }
}

/// What was run.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// Who took part.
    pub contestants: &'a [Contestant],
    /// The prompts.
    pub prompts: &'a [Prompt],
    /// Those that did not fit.
    pub left_out: &'a [LeftOut],
    /// Repeats.
    pub repeats: usize,
    /// Whether answers were compared.
    pub compared: bool,
    /// What was compared, in words.
    pub setting: &'a BTreeMap<String, String>,
    /// How much of the peers' texts is ours.
    pub same_text: &'a [SameText],
}

impl Summary {
    /// The table of some answers.
    #[must_use]
    pub fn of(run: &Described<'_>, answers: &[AnswerRecord], sessions: &[Provenance]) -> Self {
        let mut categories: Vec<Category> = Vec::new();
        for prompt in run.prompts {
            match categories.iter_mut().find(|category| category.name == prompt.category) {
                Some(category) => category.prompts += 1,
                None => {
                    categories.push(Category { name: prompt.category.clone(), prompts: 1 });
                }
            }
        }
        let by_place: BTreeMap<_, _> = answers
            .iter()
            .map(|a| ((a.configuration.as_str(), a.prompt.as_str(), a.repeat), a))
            .collect();
        let summarize = |own: &Contestant| {
            let plain = &run.contestants[own.baseline].name;
            let cell = |category: Option<&str>| {
                let chosen = |prompt: &&Prompt| category.is_none_or(|c| c == prompt.category);
                let prompts = || run.prompts.iter().filter(chosen);
                let pair = |prompt: &Prompt, repeat: usize| {
                    let of = |name| by_place.get(&(name, prompt.id.as_str(), repeat)).copied();
                    Some((of(&own.name)?, of(plain)?))
                };
                let of_repeat = |repeat: usize| -> Pool<'_> {
                    prompts().filter_map(|prompt| pair(prompt, repeat)).collect()
                };
                let of_prompt = |prompt: &Prompt| -> Pool<'_> {
                    (0..run.repeats).filter_map(|repeat| pair(prompt, repeat)).collect()
                };
                let by_repeat: Vec<_> = (0..run.repeats).map(of_repeat).collect();
                let by_prompt: Vec<_> = prompts().map(of_prompt).collect();
                Cell::of(&by_repeat, &by_prompt)
            };
            let named = categories.iter().map(|c| (c.name.clone(), cell(Some(&c.name))));
            let cells = named.chain([(OVERALL.to_owned(), cell(None))]).collect();
            let traces = answers.iter().filter(|answer| answer.configuration == own.name);
            ConfigurationSummary {
                name: own.name.clone(),
                flags: own.flags.clone(),
                baseline: plain.clone(),
                cores: own.cores,
                point: own.point.clone(),
                cells,
                sample: traces.flat_map(|answer| &answer.turns).find_map(|turn| turn.trace.clone()),
            }
        };
        Self {
            setting: run.setting.clone(),
            sessions: sessions.to_vec(),
            repeats: run.repeats,
            compared: run.compared,
            left_out: run.left_out.iter().map(LeftOut::to_string).collect(),
            configurations: run.contestants.iter().map(summarize).collect(),
            versus: versus(run.contestants, answers),
            same_text: run.same_text.to_vec(),
            categories,
        }
    }
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { prompt, category, tokens, context } = self;
        write!(f, "{category}: {prompt} ({tokens} tokens of {context})")
    }
}

impl Cell {
    /// A cell of one pool a repeat, and one a prompt.
    fn of(pools: &[Pool<'_>], prompts: &[Pool<'_>]) -> Self {
        let measured = |metric: &Metric, pools: &[Pool<'_>]| {
            let values: Vec<f64> = pools.iter().filter_map(|pool| metric.of(pool)).collect();
            Measured::of(&values).map(|measured| (*metric, measured))
        };
        let rates: Vec<_> = pools.iter().map(Pool::acceptance_per_position).collect();
        let depths = rates.iter().map(Vec::len).max().unwrap_or(0);
        let rate = |depth: usize| {
            let values: Vec<f64> = rates.iter().filter_map(|rates| *rates.get(depth)?).collect();
            Measured::of(&values)
        };
        Self {
            answers: pools.iter().map(Pool::len).max().unwrap_or(0),
            metrics: Metric::ALL.iter().filter_map(|metric| measured(metric, pools)).collect(),
            over_prompts: {
                let metrics = Metric::OVER_PROMPTS.iter();
                metrics.filter_map(|metric| measured(metric, prompts)).collect()
            },
            acceptance_per_position: (0..depths).map(rate).collect(),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::testing::{answer, prompt, turn};
    use crate::{Models, Sweep, configurations, contestants};

    #[test]
    fn cells_pool_a_category_and_measure_over_repeats() {
        let models = Models { target: "t".into(), ..Models::default() };
        let configurations = configurations(&models, &[Sweep::default()], false).unwrap();
        let contestants = contestants(&configurations, &[]).unwrap();
        let prompts = [prompt("p", "one"), prompt("q", "two")];
        let mut answers = Vec::new();
        for (repeat, time) in [(0, 200), (1, 400)] {
            for prompt in &prompts {
                let slow = turn(&[(time, 1), (1000, 1)]);
                let fast = turn(&[(time, 1), (500, 1)]);
                for (configuration, turn) in configurations.iter().zip([slow, fast]) {
                    answers.push(answer(&configuration.name, &prompt.id, repeat, turn));
                }
            }
        }
        let setting = BTreeMap::from([("seed".to_owned(), "0".to_owned())]);
        let described = Described {
            contestants: &contestants,
            prompts: &prompts,
            left_out: &[],
            repeats: 2,
            compared: true,
            setting: &setting,
            same_text: &[],
        };
        let summary = Summary::of(&described, &answers, &[]);
        assert_eq!(summary.categories.len(), 2);
        let [plain, drafted] = &summary.configurations[..] else { panic!("two") };
        assert_eq!((plain.cells["one"].answers, plain.cells[OVERALL].answers), (1, 2));
        let ratio = |of: &ConfigurationSummary| of.cells[OVERALL].get(Metric::SpeedRatio).unwrap();
        assert!((ratio(plain).mean - 1.0).abs() < 1e-12);
        assert!((ratio(drafted).mean - 2.0).abs() < 1e-12);
        let first = drafted.cells["two"].get(Metric::FirstTokenMs).unwrap();
        assert!((first.mean - 300e-6).abs() < 1e-12 && first.deviation.unwrap() > 1e-4);
        // Repeats of a prompt count as one: no deviation within a category of one prompt.
        let over_prompts =
            |category: &str| drafted.cells[category].over_prompts[&Metric::SpeedRatio];
        assert_eq!(over_prompts("two").deviation, None);
        assert!(over_prompts(OVERALL).deviation.is_some_and(|deviation| deviation < 1e-12));
        assert!((over_prompts(OVERALL).mean - 2.0).abs() < 1e-12);
        // What is written is read, but for the last digit of numbers.
        let text = serde_json::to_string(&summary).unwrap();
        let read: Summary = serde_json::from_str(&text).unwrap();
        assert_eq!((read.categories, read.setting), (summary.categories, summary.setting));
        let names = |of: &[ConfigurationSummary]| of.iter().map(|own| own.name.clone()).collect();
        let names: [Vec<_>; 2] =
            [&read.configurations, &summary.configurations].map(|of| names(of));
        assert_eq!(names[0], names[1]);
    }
}
