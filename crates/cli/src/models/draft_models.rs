//! Published draft models for well-known targets.

use anyhow::Context;
use forerun::checkpoint::Config;
use serde::{Deserialize, Serialize};

/// The page that says more of them.
pub(super) const GUIDE: &str =
    "https://github.com/forerun/forerun/blob/main/docs/guide/src/draft-models.md";

const DATA: &str = include_str!("draft_models.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Data {
    target: Vec<Target>,
}

/// A target, with the drafters for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    name: String,
    model_types: Vec<String>,
    hidden_size: usize,
    num_hidden_layers: usize,
    vocab_size: usize,
    intermediate_size: Option<usize>,
    #[serde(default)]
    same_shape: Vec<String>,
    /// Whether the checkpoint has an MTP head, which needs no other file.
    #[serde(default)]
    mtp_head: bool,
    pub(super) drafters: Vec<DraftModel>,
}

/// A drafter on the Hugging Face hub.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DraftModel {
    repository: String,
    drafter: String,
    /// In billions.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<f64>,
    /// The release that it was made for, if it is not the target's first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    trained_for: Option<String>,
    /// Whether a file must be converted first.
    #[serde(default)]
    pickled: bool,
}

fn targets() -> anyhow::Result<Vec<Target>> {
    let data: Data = toml::from_str(DATA).context("the list of draft models is broken")?;
    Ok(data.target)
}

/// Returns the known target with the shape of this model, if there is one. Drafters for the release
/// that the model's name contains come first.
pub(super) fn known_target(name: &str, config: &Config) -> anyhow::Result<Option<Target>> {
    let mut found = targets()?.into_iter().find(|target| target.is_like(config));
    if let Some(target) = &mut found {
        target.sort_for(name);
    }
    Ok(found)
}

impl Target {
    fn is_like(&self, config: &Config) -> bool {
        let family = config.family.model_type();
        let size = self.intermediate_size.unwrap_or(config.intermediate_size);
        // Vocabularies are padded differently.
        let padding = self.vocab_size.abs_diff(config.vocab_size);
        self.model_types.iter().any(|model_type| model_type == family)
            && (self.hidden_size, self.num_hidden_layers, size)
                == (config.hidden_size, config.num_hidden_layers, config.intermediate_size)
            && padding <= self.vocab_size / 100
    }

    fn sort_for(&mut self, name: &str) {
        let name = name.to_lowercase();
        let releases = std::iter::once(&self.name).chain(&self.same_shape);
        let named = releases.filter(|release| name.contains(&release.to_lowercase()));
        let Some(release) = named.max_by_key(|release| release.len()).cloned() else { return };
        let first = &self.name;
        self.drafters.sort_by_key(|drafter| {
            let is_small_model = drafter.drafter == "model";
            (is_small_model, drafter.trained_for.as_ref().unwrap_or(first) != &release)
        });
    }

    /// Returns the drafters as lines, and the command with the first one that needs no conversion.
    pub(super) fn text(&self, model: &str) -> String {
        let mut text = format!("Draft models for {}", self.name);
        if !self.same_shape.is_empty() {
            text += &format!(" and {}", self.same_shape.join(", "));
        }
        text += " (not tried with forerun):\n";
        if self.mtp_head {
            text += "  its own MTP head: --drafter mtp\n";
        }
        for drafter in &self.drafters {
            text += &format!("  {drafter}\n");
        }
        let mut command = format!("forerun generate --model {model}");
        match self.drafters.iter().find(|drafter| !drafter.pickled) {
            Some(drafter) => command += &drafter.flags(),
            None => command += " --drafter mtp",
        }
        format!("{text}\n    {command} --prompt \"Once upon a time\"\n\nWhich one? {GUIDE}\n")
    }
}

impl DraftModel {
    fn flags(&self) -> String {
        let Self { repository, drafter, .. } = self;
        match &**drafter {
            "model" => format!(" --draft-model {repository}"),
            drafter => format!(" --draft-model {repository} --drafter {drafter}"),
        }
    }
}

/// Its options, with what else is known.
impl std::fmt::Display for DraftModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = self.parameters.map(|billions| format!("{billions}B"));
        let release = self.trained_for.as_ref().map(|release| format!("for {release}"));
        let conversion = self.pickled.then(|| "convert its pickled weights first".to_owned());
        let remarks: Vec<String> = [size, release, conversion].into_iter().flatten().collect();
        f.write_str(self.flags().trim_start())?;
        match remarks.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", remarks.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun::DrafterKind;
    use forerun_formats::checkpoint::random::example_config;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_drafter_has_a_kind_and_every_target_can_be_told_apart() {
        let targets = targets().unwrap();
        let mut shapes = BTreeSet::new();
        for target in &targets {
            assert!(!target.drafters.is_empty(), "{}", target.name);
            for drafter in &target.drafters {
                assert!(drafter.drafter.parse::<DrafterKind>().is_ok(), "{drafter}");
            }
            let Target { hidden_size, num_hidden_layers, vocab_size, .. } = *target;
            for model_type in &target.model_types {
                let shape = (model_type, hidden_size, num_hidden_layers, vocab_size);
                assert!(shapes.insert((shape, target.intermediate_size)), "{}", target.name);
            }
        }
    }

    /// Each target has a row with all its drafters, and no row has others.
    #[test]
    fn the_guides_table_has_the_same_drafters() {
        let page =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/src/draft-models.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: Vec<BTreeSet<&str>> = page
            .lines()
            .filter(|line| line.starts_with("| "))
            .map(|line| {
                line.split('`').skip(1).step_by(2).filter(|code| code.contains('/')).collect()
            })
            .filter(|row: &BTreeSet<&str>| !row.is_empty())
            .collect();
        let targets = targets().unwrap();
        let mut in_guide = vec![BTreeSet::new(); rows.len()];
        for target in &targets {
            let own: BTreeSet<&str> =
                target.drafters.iter().map(|drafter| &*drafter.repository).collect();
            let row = rows.iter().position(|row| own.is_subset(row));
            let row = row.unwrap_or_else(|| panic!("{} has no row with {own:?}", target.name));
            in_guide[row].extend(own);
        }
        assert_eq!(in_guide, rows);
        for drafter in targets.iter().flat_map(|target| &target.drafters) {
            let Some(size) = drafter.parameters.filter(|_| drafter.drafter != "model") else {
                continue;
            };
            let with_size = format!("`{}` ({size}B", drafter.repository);
            assert!(page.contains(&with_size), "{with_size}");
        }
    }

    #[test]
    fn targets_are_recognised_by_their_shape() {
        let llama = Config {
            hidden_size: 4096,
            num_hidden_layers: 32,
            vocab_size: 128_256,
            ..example_config()
        };
        let name = |config: &Config| Some(known_target("model", config).unwrap()?.name);
        assert_eq!(name(&llama).as_deref(), Some("Llama-3.1-8B"));
        assert_eq!(name(&Config { vocab_size: 128_300, ..llama.clone() }), name(&llama));
        assert_eq!(name(&Config { vocab_size: 32_000, ..llama.clone() }), None);
        assert_eq!(name(&Config { num_hidden_layers: 31, ..llama }), None);
    }

    #[test]
    fn drafters_for_the_named_release_come_first() {
        let coder = |name: &str| {
            let mut targets = targets().unwrap().into_iter();
            let mut target = targets.find(|it| it.name == "Qwen3-30B-A3B").unwrap();
            target.sort_for(name);
            target
        };
        let first = |name: &str| coder(name).drafters[0].repository.clone();
        assert_eq!(first("Qwen/Qwen3-Coder-30B-A3B-Instruct"), "z-lab/Qwen3-Coder-30B-A3B-DFlash");
        assert_eq!(first("qwen3-30b-a3b-q4_k_m.gguf"), "RedHatAI/Qwen3-30B-A3B-speculator.dflash");
        assert_eq!(first("Qwen/Qwen3-30B-A3B-Instruct-2507").matches("Instruct-2507").count(), 1);
        assert_eq!(first("other"), "RedHatAI/Qwen3-30B-A3B-speculator.dflash");
        let text = coder("other").text("Qwen/Qwen3-30B-A3B");
        for words in [
            "and Qwen3-30B-A3B-Instruct-2507, ",
            "\n  --draft-model Qwen/Qwen3-0.6B (0.6B)\n",
            "\n    forerun generate --model Qwen/Qwen3-30B-A3B --draft-model RedHatAI/",
            GUIDE,
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
