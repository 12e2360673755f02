//! The options of an engine, as Python passes them.

use crate::errors::{of_engine, value_error};
use forerun::checkpoint::NamedAdapter;
use forerun::{
    DrafterOptions, Engine, LayerStrategy, Loader, MethodOptions, ModelSource, Options, Plan,
    Progress, Step, Tree,
};
use forerun_cli::{DEMONSTRATION_DRAFTER, DEMONSTRATION_TARGET};
use pyo3::prelude::*;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;

/// The keyword arguments of an engine.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct EngineOptions {
    model: Option<String>,
    adapters: Vec<(String, String)>,
    draft_model: Option<String>,
    method: Option<String>,
    drafter: Option<String>,
    also_draft: Vec<String>,
    lookup: String,
    draft_tokens: String,
    tree: Option<String>,
    pearl: Option<String>,
    layers: Option<String>,
    calibration: Option<String>,
    dtype: Option<String>,
    kv_cache_dtype: Option<String>,
    kv_cache_memory_bytes: Option<usize>,
    cache_dir: Option<String>,
    cache_dir_size: Option<usize>,
    threads: Option<usize>,
    placement: Option<String>,
    gpu_layers: Option<usize>,
    cpu_moe: Option<usize>,
    pin: bool,
    offline: bool,
    pub(crate) max_num_seqs: usize,
    /// Called with the step (`download` or `load`), the name of what it handles, what is done and
    /// the total.
    on_progress: Option<Py<PyAny>>,
}

/// Parses an option. The error names it.
fn parse<T: FromStr<Err: Display>>(name: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|error: T::Err| value_error(format!("`{name}`: {error}")))
}

fn parse_some<T: FromStr<Err: Display>>(name: &str, text: Option<&str>) -> PyResult<Option<T>> {
    text.map(|text| parse(name, text)).transpose()
}

/// Lets Python handle signals and see the progress. Both may raise an exception.
fn report(py: Python<'_>, on_progress: Option<&Py<PyAny>>, progress: Progress<'_>) -> PyResult<()> {
    py.check_signals()?;
    let Progress { step, done, total } = progress;
    let (step, name) = match step {
        Step::Download { model, file } => ("download", format!("{model} {file}")),
        Step::Cached { model } => ("use the cached", model.to_owned()),
        Step::Load { model, .. } => ("load", model.to_owned()),
        Step::Split { model, gpu } => ("split", format!("{model} gpu:{gpu}")),
        Step::Export { model } => ("export", model.to_owned()),
    };
    match on_progress {
        None => Ok(()),
        Some(callback) => callback.call1(py, (step, name, done, total)).map(drop),
    }
}

/// Parses a number of layers, or groups of layers.
fn layers(text: &str) -> PyResult<LayerStrategy> {
    match text.parse() {
        Ok(count) => Ok(LayerStrategy::Parallel(count)),
        Err(_) => parse("layers", text),
    }
}

fn adapter(name: &str, path: &str) -> NamedAdapter {
    NamedAdapter { name: name.to_owned(), path: path.into() }
}

impl EngineOptions {
    fn uses_demonstration(&self) -> bool {
        self.model.as_deref().is_none_or(|model| model == "demo" && !Path::new(model).exists())
    }

    /// Returns the engine's options.
    fn options(&self) -> PyResult<Options> {
        // The types have a name for the default, too.
        let chosen = |text: &Option<String>| text.clone().filter(|text| text != "auto");
        let (dtype, kv_cache_dtype) = (chosen(&self.dtype), chosen(&self.kv_cache_dtype));
        let drafter = parse_some("drafter", self.drafter.as_deref())?;
        let (mut model, mut draft_model) =
            (self.model.clone().map(ModelSource::from), self.draft_model.clone().map(Into::into));
        if self.uses_demonstration() {
            if model.is_none() && draft_model.is_some() {
                return Err(value_error(
                    "`draft_model` was given without `model`: name the target as well",
                ));
            }
            model = Some(DEMONSTRATION_TARGET.into());
            if draft_model.is_none() && drafter.is_none_or(forerun::DrafterKind::has_model) {
                draft_model = Some(DEMONSTRATION_DRAFTER.into());
            }
        }
        let layers = self.layers.as_deref().map(layers).transpose()?;
        let calibration = parse_some("calibration", self.calibration.as_deref())?;
        let method = parse_some("method", self.method.as_deref())?;
        let drafter = DrafterOptions::of(method, drafter, layers, calibration);
        let method = MethodOptions::of(
            method,
            parse_some("tree", self.tree.as_deref())?.unwrap_or(Tree::None),
            parse("lookup", &self.lookup)?,
            parse_some("pearl", self.pearl.as_deref())?.unwrap_or_default(),
        );
        let also_draft = self.also_draft.iter().map(|text| parse("also_draft", text));
        Ok(Options {
            model: model.unwrap_or_default(),
            adapters: self.adapters.iter().map(|(name, path)| adapter(name, path)).collect(),
            draft_model,
            method: method.map_err(value_error)?,
            drafter: drafter.map_err(value_error)?,
            additional_drafters: also_draft.collect::<PyResult<_>>()?,
            draft_tokens: parse("draft_tokens", &self.draft_tokens)?,
            weight_type: parse_some("dtype", dtype.as_deref())?,
            cache_type: parse_some("kv_cache_dtype", kv_cache_dtype.as_deref())?,
            cache_bytes: self.kv_cache_memory_bytes,
            cache_dir: self.cache_dir.clone().map(Into::into),
            cache_dir_size: self.cache_dir_size,
            context_length: None,
            threads: self.threads,
            placement: parse_some("placement", self.placement.as_deref())?,
            gpu_layers: self.gpu_layers,
            cpu_moe: self.cpu_moe,
            pin: self.pin,
        })
    }

    /// Loads the models.
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<Engine> {
        let plan = Plan::new(self.options()?).map_err(value_error)?;
        let mut interrupt = None;
        let opened = py.detach(|| {
            let mut loader = Loader::new().offline(self.offline).on_progress(|progress| {
                // Ctrl-C stops a download, and loading after the current model.
                match Python::try_attach(|py| report(py, self.on_progress.as_ref(), progress)) {
                    Some(Err(error)) => {
                        interrupt = Some(error);
                        ControlFlow::Break(())
                    }
                    _ => ControlFlow::Continue(()),
                }
            });
            Engine::open_with(&plan, &mut loader)
        });
        match (opened, interrupt) {
            (_, Some(error)) => Err(error),
            (Ok(engine), None) => Ok(engine),
            (Err(error), None) => Err(of_engine(&error)),
        }
    }
}
