//! The summary of a comparison: every metric by configuration and category, over repeats.

use crate::layer_point::LayerPoint;
use crate::metrics::{Measured, Metric, Pool};
use crate::peer_comparison::{PeerComparison, TextAgreement, compare_with_peers};
use crate::record::AnswerRecord;
use crate::{LeftOut, Participant, PredictedSpeed, Prompt, Provenance};
use forerun::trace::Trace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the row for all categories together.
pub const OVERALL: &str = "overall";
/// The key in [`Summary::setting`] that describes a synthetic model pair with random weights.
pub const SYNTHETIC_PAIR: &str = "synthetic pair";

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// What was compared, in words: models, sampling, seed, tokens.
    pub setting: BTreeMap<String, String>,
    /// The starts of the program. An interrupted comparison has several.
    pub sessions: Vec<Provenance>,
    /// The categories in the order of the suite.
    pub categories: Vec<Category>,
    /// The number of repeats.
    pub repeats: usize,
    /// Whether every answer was compared with that of autoregressive decoding and found equal.
    pub compared: bool,
    /// The prompts that do not fit into the model's context with a whole answer, as `category: id`.
    pub left_out: Vec<String>,
    /// The configurations, each after its baseline, followed by the peers'.
    pub configurations: Vec<ConfigurationSummary>,
    /// The speed compared with peers that draft in the same way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versus: Vec<PeerComparison>,
    /// The agreement of the peers' texts with ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub same_text: Vec<TextAgreement>,
}

/// A category of prompts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Category {
    /// The name of the category.
    pub name: String,
    /// The number of prompts that were answered.
    pub prompts: usize,
}

/// The result of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigurationSummary {
    /// The name of the configuration.
    pub name: String,
    /// The equivalent flags of `forerun generate`; for a peer, its command.
    pub flags: String,
    /// The name of the baseline.
    pub baseline: String,
    /// The total number of cores.
    pub cores: usize,
    /// The point in EasySpec's figure 4, for layer-parallel drafters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<LayerPoint>,
    /// The prediction of a hardware profile, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<PredictedSpeed>,
    /// The results by category; [`OVERALL`] is for all categories together.
    pub cells: BTreeMap<String, Cell>,
    /// The passes of paced devices. `None`: passes took the time of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paced: Option<PacedSummary>,
    /// The beginning of the trace of its first answer.
    pub sample: Option<Trace>,
}

/// How the passes of paced devices kept to their times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacedSummary {
    /// The name of the pass times.
    pub name: String,
    /// The number of passes in all answers.
    pub passes: u64,
    /// The number of these that took more than 5 % longer than their time.
    pub overruns: u64,
}

/// The largest share of overruns in a result that may be used as evidence.
const MOST_OVERRUNS: f64 = 0.01;

impl PacedSummary {
    fn of<'a>(name: String, answers: impl Iterator<Item = &'a AnswerRecord>) -> Self {
        let counts = answers.flat_map(|answer| &answer.turns).map(|turn| &turn.counts);
        counts.fold(Self { name, ..Self::default() }, |sum, counts| Self {
            passes: sum.passes + counts.target_forwards + counts.drafter_forwards,
            overruns: sum.overruns + counts.overruns,
            ..sum
        })
    }

    /// Returns the share of passes that overran.
    #[must_use]
    pub fn overrun_share(&self) -> f64 {
        self.overruns as f64 / self.passes.max(1) as f64
    }
}

/// The result of a configuration on a category.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The number of answers in each repeat. Every turn counts.
    pub answers: usize,
    /// The metrics over repeats. A metric that was not measured is missing.
    pub metrics: BTreeMap<Metric, Measured>,
    /// The metrics over prompts. All repeats of a prompt count as one value.
    #[serde(default)]
    pub over_prompts: BTreeMap<Metric, Measured>,
    /// For each depth of drafts, accepted tokens divided by tested ones.
    pub acceptance_per_position: Vec<Option<Measured>>,
}

impl Cell {
    /// Returns a metric, if it was measured.
    #[must_use]
    pub fn get(&self, metric: Metric) -> Option<Measured> {
        self.metrics.get(&metric).copied()
    }
}

/// The description of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct RunDescription<'a> {
    /// The configurations and peers.
    pub participants: &'a [Participant],
    /// The prompts that were answered.
    pub prompts: &'a [Prompt],
    /// The prompts that do not fit into the context.
    pub left_out: &'a [LeftOut],
    /// The number of repeats.
    pub repeats: usize,
    /// Whether all answers were compared with autoregressive decoding.
    pub compared: bool,
    /// What was compared, in words.
    pub setting: &'a BTreeMap<String, String>,
    /// The agreement of the peers' texts with ours.
    pub text_agreement: &'a [TextAgreement],
    /// The predicted speeds of the first participants in tokens per second after the first token,
    /// if there are any.
    pub predictions: &'a [Option<f64>],
}

impl Summary {
    /// Computes the summary of a comparison from its answers.
    #[must_use]
    pub fn of(run: &RunDescription<'_>, answers: &[AnswerRecord], sessions: &[Provenance]) -> Self {
        let mut categories: Vec<Category> = Vec::new();
        for prompt in run.prompts {
            match categories.iter_mut().find(|category| category.name == prompt.category) {
                Some(category) => category.prompts += 1,
                None => {
                    categories.push(Category { name: prompt.category.clone(), prompts: 1 });
                }
            }
        }
        let by_key: BTreeMap<_, _> = answers
            .iter()
            .map(|a| ((a.configuration.as_str(), a.prompt.as_str(), a.repeat), a))
            .collect();
        let summarize = |(index, participant): (usize, &Participant)| {
            let plain = &run.participants[participant.baseline].name;
            let cell = |category: Option<&str>| {
                let chosen = |prompt: &&Prompt| category.is_none_or(|c| c == prompt.category);
                let prompts = || run.prompts.iter().filter(chosen);
                let pair = |prompt: &Prompt, repeat: usize| {
                    let of = |name| by_key.get(&(name, prompt.id.as_str(), repeat)).copied();
                    Some((of(&participant.name)?, of(plain)?))
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
            let overall = cell(None);
            let predicted = run.predictions.get(index).copied().flatten();
            let prediction = predicted.and_then(|predicted| {
                let measured = overall.get(Metric::PerTokenMs)?;
                Some(PredictedSpeed::new(predicted, measured.mean))
            });
            let own = || answers.iter().filter(|answer| answer.configuration == participant.name);
            let paced = participant.paced.clone().map(|name| PacedSummary::of(name, own()));
            let cells = named.chain([(OVERALL.to_owned(), overall)]).collect();
            ConfigurationSummary {
                name: participant.name.clone(),
                flags: participant.flags.clone(),
                baseline: plain.clone(),
                cores: participant.cores,
                point: participant.point.clone(),
                prediction,
                cells,
                paced,
                sample: own().flat_map(|answer| &answer.turns).find_map(|turn| turn.trace.clone()),
            }
        };
        Self {
            setting: run.setting.clone(),
            sessions: sessions.to_vec(),
            repeats: run.repeats,
            compared: run.compared,
            left_out: run.left_out.iter().map(LeftOut::to_string).collect(),
            configurations: run.participants.iter().enumerate().map(summarize).collect(),
            versus: compare_with_peers(run.participants, answers),
            same_text: run.text_agreement.to_vec(),
            categories,
        }
    }
}

impl Summary {
    /// Returns why the result must not be used as evidence: more than 1 % of the passes of a
    /// configuration overran the times of its paced devices.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let share = |entry: &ConfigurationSummary| {
            entry.paced.as_ref().map_or(0.0, PacedSummary::overrun_share)
        };
        let worst = self.configurations.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        let PacedSummary { passes, overruns, .. } =
            worst.paced.as_ref().filter(|paced| paced.overrun_share() > MOST_OVERRUNS)?;
        Some(format!(
            "this run is no evidence: {overruns} of {passes} passes of {:?} overran the times of their \
             paced devices, and at most {} % may; stop other programs, or choose smaller models, fewer \
             replicas or slower devices",
            worst.name,
            MOST_OVERRUNS * 100.0
        ))
    }
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { prompt, category, tokens, context } = self;
        write!(f, "{category}: {prompt} ({tokens} tokens, context {context})")
    }
}

impl Cell {
    /// Computes a cell from one pool for each repeat and one pool for each prompt.
    fn of(repeats: &[Pool<'_>], prompts: &[Pool<'_>]) -> Self {
        let measured = |metric: &Metric, pools: &[Pool<'_>]| {
            let values: Vec<f64> = pools.iter().filter_map(|pool| metric.of(pool)).collect();
            Measured::of(&values).map(|measured| (*metric, measured))
        };
        let rates: Vec<_> = repeats.iter().map(Pool::acceptance_per_position).collect();
        let depths = rates.iter().map(Vec::len).max().unwrap_or(0);
        let rate = |depth: usize| {
            let values: Vec<f64> = rates.iter().filter_map(|rates| *rates.get(depth)?).collect();
            Measured::of(&values)
        };
        Self {
            answers: repeats.iter().map(Pool::len).max().unwrap_or(0),
            metrics: Metric::ALL.iter().filter_map(|metric| measured(metric, repeats)).collect(),
            over_prompts: {
                Metric::OVER_PROMPTS.iter().filter_map(|metric| measured(metric, prompts)).collect()
            },
            acceptance_per_position: (0..depths).map(rate).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{answer, prompt, turn};
    use crate::{Models, Sweep, configurations, pacing, participants};
    use forerun::Method;

    #[test]
    fn cells_pool_the_prompts_of_a_category_in_each_repeat() {
        let models = Models { target: "t".into(), ..Models::default() };
        let configurations = configurations(&models, &[Sweep::default()], false).unwrap();
        let participants = participants(&configurations, &[]).unwrap();
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
        let described = RunDescription {
            participants: &participants,
            prompts: &prompts,
            left_out: &[],
            repeats: 2,
            compared: true,
            setting: &setting,
            text_agreement: &[],
            predictions: &[None, Some(1e9)],
        };
        let summary = Summary::of(&described, &answers, &[]);
        assert_eq!(summary.categories.len(), 2);
        let [plain, drafted] = &summary.configurations[..] else { panic!("two") };
        assert_eq!((plain.cells["one"].answers, plain.cells[OVERALL].answers), (1, 2));
        let ratio = |of: &ConfigurationSummary| of.cells[OVERALL].get(Metric::SpeedRatio).unwrap();
        assert!((ratio(plain).mean - 1.0).abs() < 1e-12);
        assert!((ratio(drafted).mean - 2.0).abs() < 1e-12);
        assert_eq!(plain.prediction, None);
        let prediction = drafted.prediction.unwrap();
        assert_eq!(prediction.predicted_tokens_per_second, 1e9);
        let measured = prediction.measured_tokens_per_second;
        let per_token = drafted.cells[OVERALL].get(Metric::PerTokenMs).unwrap();
        assert!((measured * per_token.mean / 1e3 - 1.0).abs() < 1e-12);
        assert!((prediction.error - (measured / 1e9 - 1.0)).abs() < 1e-12);
        let first = drafted.cells["two"].get(Metric::FirstTokenMs).unwrap();
        assert!((first.mean - 300e-6).abs() < 1e-12 && first.deviation.unwrap() > 1e-4);
        // All repeats of a prompt count as one value, so a category of one prompt has no deviation.
        let over_prompts =
            |category: &str| drafted.cells[category].over_prompts[&Metric::SpeedRatio];
        assert_eq!(over_prompts("two").deviation, None);
        assert!(over_prompts(OVERALL).deviation.is_some_and(|deviation| deviation < 1e-12));
        assert!((over_prompts(OVERALL).mean - 2.0).abs() < 1e-12);
        // A summary reads back from JSON, except for the last digit of numbers.
        let text = serde_json::to_string(&summary).unwrap();
        let read: Summary = serde_json::from_str(&text).unwrap();
        assert_eq!((read.categories, read.setting), (summary.categories, summary.setting));
        let names =
            |of: &[ConfigurationSummary]| of.iter().map(|entry| entry.name.clone()).collect();
        let names: [Vec<_>; 2] =
            [&read.configurations, &summary.configurations].map(|of| names(of));
        assert_eq!(names[0], names[1]);
    }
    #[test]
    fn a_run_on_paced_devices_says_so_and_is_refused_if_passes_overran() {
        let core = forerun::placement::available_cores()[0];
        let text = format!(
            "drafter=cpu:{core},target=cpu:{core},target=cpu:{core},paced=llama-2-7b-70b-a100"
        );
        let models = Models { target: "t".into(), drafter: Some("d".into()), embedded: false };
        let placements = vec![pacing::placement(&text).unwrap()];
        let sweep = Sweep { methods: vec![Method::Dsi], placements, ..Sweep::default() };
        let configurations = configurations(&models, &[sweep], false).unwrap();
        let names = ["autoregressive", "dsi, model, auto"];
        let names = names.map(|name| format!("{name}, paced as llama-2-7b-70b-a100"));
        assert!(configurations.iter().map(|it| &it.name).eq(&names));
        let plain = format!("--placement target=cpu:{core},paced=llama-2-7b-70b-a100 ");
        assert!(configurations[0].flags.contains(&plain), "{}", configurations[0].flags);
        assert!(configurations[1].flags.contains(&text), "{}", configurations[1].flags);
        let participants = participants(&configurations, &[]).unwrap();
        let (prompts, setting) = ([prompt("p", "c")], BTreeMap::new());
        let described = RunDescription {
            participants: &participants,
            prompts: &prompts,
            left_out: &[],
            repeats: 1,
            compared: true,
            setting: &setting,
            text_agreement: &[],
            predictions: &[],
        };
        for (overruns, is_refused) in [(0, false), (1, false), (2, true)] {
            let answers = names.each_ref().map(|name| {
                let mut turn = turn(&[(10, 1), (20, 1)]);
                turn.counts.target_forwards = 60;
                turn.counts.drafter_forwards = 40;
                turn.counts.overruns = if name.starts_with("dsi") { overruns } else { 0 };
                answer(name, "p", 0, turn)
            });
            let summary = Summary::of(&described, &answers, &[]);
            let refusal = summary.refusal();
            let report = crate::report::markdown(&summary);
            assert!(report.contains(&format!("70b-a100. {overruns} of 200 passes overran")));
            assert_eq!(refusal.is_some(), is_refused);
            assert_eq!(report.contains("this run is no evidence: 2 of 100 passes"), is_refused);
        }
    }
}
