//! What the options of models, drafts and devices lead to, also for other programs with these
//! options.

use crate::arguments::EngineArguments;
use crate::generate::{demonstration, options};
use crate::progress;
use forerun::{Loader, Plan};
use std::path::Path;

impl EngineArguments {
    /// Returns the plan of the options. Without a model, the options name the demonstration pair
    /// from now on.
    ///
    /// # Errors
    /// If options contradict each other, or do not fit this machine.
    pub fn plan(&mut self) -> anyhow::Result<Plan> {
        demonstration(self)?;
        self.refuse_adapters()?;
        Ok(Plan::new(options(self)?)?)
    }

    /// Refuses adapters, for a command whose requests choose none.
    ///
    /// # Errors
    /// If there are any.
    pub(crate) fn refuse_adapters(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.lora.is_empty(),
            "--lora is for generate, run, chat, distill and serve: leave it out here, or merge the \
             adapter into the model"
        );
        Ok(())
    }

    /// Returns what loads the models as the options say. It reports its progress on standard error.
    #[must_use]
    pub fn loader(&self) -> Loader<'static> {
        progress::loader(self.offline, true)
    }

    /// Returns the model's name for users: that of its file or directory, or its hub id.
    #[must_use]
    pub fn model_name(&self) -> String {
        let model = self.model.get().cloned().unwrap_or_default();
        let path = model.path().filter(|path| path.exists()).map(Path::to_owned);
        let path = path.map(|path| path.canonicalize().unwrap_or(path));
        let name = path.as_deref().and_then(|path| path.file_name());
        name.map_or_else(|| model.to_string(), |name| name.to_string_lossy().into_owned())
    }
}
