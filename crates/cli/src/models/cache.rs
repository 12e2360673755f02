//! The models in the cache that Hugging Face's tools share.

use crate::arguments::{ListModelsArguments, PullModelsArguments, RemoveModelsArguments};
use anyhow::bail;
use std::process::ExitCode;

#[cfg(feature = "hub")]
pub(super) use with_hub::{list, pull, remove};

/// Without the hub, there is no cache.
#[cfg(not(feature = "hub"))]
mod without_hub {
    use super::*;

    fn missing() -> anyhow::Result<ExitCode> {
        bail!("this build cannot use the hub and its cache: it lacks the feature hub")
    }

    pub(in crate::models) fn list(_: &ListModelsArguments) -> anyhow::Result<ExitCode> {
        missing()
    }

    pub(in crate::models) fn pull(_: &PullModelsArguments) -> anyhow::Result<ExitCode> {
        missing()
    }

    pub(in crate::models) fn remove(_: &RemoveModelsArguments) -> anyhow::Result<ExitCode> {
        missing()
    }
}
#[cfg(not(feature = "hub"))]
pub(super) use without_hub::{list, pull, remove};

#[cfg(feature = "hub")]
mod with_hub {
    use super::*;
    use crate::size::bytes;
    use crate::{note, progress, table};
    use anyhow::{Context, anyhow};
    use forerun::ModelSource;
    use forerun::hub::{HubCache, HubModel, ModelId};
    use serde_json::json;
    use std::io::{IsTerminal, Write};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    /// Prints the models in the cache.
    pub(in crate::models) fn list(arguments: &ListModelsArguments) -> anyhow::Result<ExitCode> {
        let cache = HubCache::from_environment()?;
        let models = cache.models()?;
        let mut out = std::io::stdout().lock();
        if arguments.json {
            let models: Vec<_> = models.iter().map(as_json).collect();
            let report = json!({ "cache": cache.folder(), "models": models });
            writeln!(out, "{report}")?;
            return Ok(ExitCode::SUCCESS);
        }
        if models.is_empty() {
            note(format_args!(
                "no models in {}: `forerun models pull OWNER/NAME` downloads one",
                cache.folder().display()
            ));
            return Ok(ExitCode::SUCCESS);
        }
        let now = SystemTime::now();
        let heading = ["MODEL", "SIZE", "FORMAT", "FILES", "LAST USED"].map(str::to_owned);
        let rows = models.iter().map(|model| {
            let formats = match model.formats()[..] {
                [] if model.partial_bytes > 0 => "incomplete".into(),
                [] => "none".into(),
                _ => model.formats().join(", "),
            };
            [
                model.repository.clone(),
                bytes(model.bytes),
                formats,
                model.files().len().to_string(),
                model.last_used.map_or_else(|| "unknown".into(), |time| ago(time, now)),
            ]
        });
        let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
        write!(out, "{}", table::aligned(&rows, &[1, 3]))?;
        let total = bytes(models.iter().map(|model| model.bytes).sum());
        note(format_args!("{total} in {}", cache.folder().display()));
        Ok(ExitCode::SUCCESS)
    }

    fn as_json(model: &HubModel) -> serde_json::Value {
        let seconds = |time: SystemTime| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs());
        let revisions = model.revisions.iter().map(|revision| {
            let files = revision.files.iter();
            let files = files.map(|file| json!({ "name": file.name, "bytes": file.bytes }));
            json!({
                "commit": revision.commit,
                "names": revision.names,
                "files": files.collect::<Vec<_>>(),
            })
        });
        json!({
            "model": model.repository,
            "bytes": model.bytes,
            "partial_bytes": model.partial_bytes,
            "formats": model.formats(),
            "gguf_models": model.gguf_models(),
            "last_used": model.last_used.and_then(seconds),
            "folder": model.folder,
            "revisions": revisions.collect::<Vec<_>>(),
        })
    }

    /// Downloads models, and prints where they are.
    pub(in crate::models) fn pull(arguments: &PullModelsArguments) -> anyhow::Result<ExitCode> {
        for name in &arguments.names {
            if !matches!(name, ModelSource::Hub(_)) {
                bail!("{name} is not a hub model: give an id such as owner/name");
            }
        }
        for name in &arguments.names {
            let path = progress::loader(false, true).locate(name)?;
            writeln!(std::io::stdout(), "{}", path.display())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What is removed of a model.
    struct Removal {
        model: HubModel,
        quantization: Option<String>,
    }

    /// Removes models, after a question.
    pub(in crate::models) fn remove(arguments: &RemoveModelsArguments) -> anyhow::Result<ExitCode> {
        let cache = HubCache::from_environment()?;
        let models = cache.models()?;
        // All names are checked before anything is removed.
        let removals = arguments.names.iter().map(|name| removal(name, &models, &cache));
        for Removal { model, quantization } in removals.collect::<Result<Vec<_>, _>>()? {
            let name = match &quantization {
                Some(quantization) => format!("{}:{quantization}", model.repository),
                None => format!("{} ({})", model.repository, bytes(model.bytes)),
            };
            if !arguments.yes && !confirmed(&name)? {
                note(format_args!("kept {name}"));
                continue;
            }
            let freed = match &quantization {
                Some(quantization) => cache.remove_quantization(&model, quantization)?,
                None => cache.remove(&model)?,
            };
            note(format_args!("removed {name}: {} are free again", bytes(freed)));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn removal(name: &str, models: &[HubModel], cache: &HubCache) -> anyhow::Result<Removal> {
        let id = ModelId::parse(name);
        if id.as_ref().is_some_and(|id| id.revision() != "main") {
            bail!("{name} names a revision, but only whole models can be removed: leave out @");
        }
        // Old models of the hub have no owner.
        let repository = id.as_ref().map_or(name, ModelId::repository);
        let model = models.iter().find(|model| model.repository == repository);
        let model = model.ok_or_else(|| {
            let folder = cache.folder().display();
            anyhow!(
                "{repository} is not in the cache {folder}: `forerun models list` shows what is"
            )
        })?;
        let quantization = id.as_ref().and_then(ModelId::quantization).map(str::to_owned);
        Ok(Removal { model: model.clone(), quantization })
    }

    /// Asks whether to remove a model.
    fn confirmed(name: &str) -> anyhow::Result<bool> {
        if !std::io::stdin().is_terminal() {
            bail!(
                "standard input is not a terminal, so nothing can be asked: add --yes to remove {name}"
            );
        }
        write!(std::io::stderr(), "remove {name}? [y/N] ").context("cannot ask")?;
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).context("cannot read the answer")?;
        Ok(["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()))
    }

    /// Formats how long ago a time was, such as `3 days ago`.
    fn ago(time: SystemTime, now: SystemTime) -> String {
        let seconds = now.duration_since(time).unwrap_or(Duration::ZERO).as_secs();
        let units = [
            (86_400 * 365, "year"),
            (86_400 * 30, "month"),
            (86_400, "day"),
            (3_600, "hour"),
            (60, "minute"),
        ];
        match units.into_iter().find(|(length, _)| seconds >= *length) {
            Some((length, name)) if seconds / length == 1 => format!("1 {name} ago"),
            Some((length, name)) => format!("{} {name}s ago", seconds / length),
            None => "just now".into(),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn times_have_one_unit() {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 32);
            for (seconds, expected) in [
                (0, "just now"),
                (60, "1 minute ago"),
                (7_300, "2 hours ago"),
                (86_400 * 29, "29 days ago"),
                (86_400 * 800, "2 years ago"),
            ] {
                assert_eq!(ago(now - Duration::from_secs(seconds), now), expected);
            }
            assert_eq!(ago(now + Duration::from_secs(5), now), "just now");
        }
    }
}
