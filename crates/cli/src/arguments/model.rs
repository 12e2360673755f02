//! The model of a command.

use super::{headings, values};
use anyhow::Context;
use clap::Args;
use forerun::ModelSource;

/// The ids of the model as an option and by position.
pub(crate) const MODEL: &str = "model";
pub(crate) const BY_POSITION: &str = "by_position";

/// The model of a command, by position or as an option.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub(crate) struct ModelArguments {
    /// Target model: a Hugging Face directory, a GGUF or llama2.c file, or a hub id.
    ///
    /// A hub id is `owner/name`, `owner/name@revision`, or `owner/name:Q4_K_M` for a GGUF file, and
    /// is downloaded on first use. `demo` is the built-in demonstration pair, the default of most
    /// commands.
    #[arg(value_name = "MODEL", value_parser = values::named_model, help_heading = headings::MODEL)]
    by_position: Option<ModelSource>,

    /// The model, as an option.
    #[arg(
        long,
        short_alias = 'm',
        value_name = "MODEL",
        value_parser = values::model,
        help_heading = headings::MODEL
    )]
    model: Option<ModelSource>,
}

impl ModelArguments {
    pub(crate) fn get(&self) -> Option<&ModelSource> {
        self.by_position.as_ref().or(self.model.as_ref())
    }

    /// Returns the model of a command that needs one.
    pub(crate) fn require(&self) -> anyhow::Result<&ModelSource> {
        self.get().context("no model: name one after the command, or with --model")
    }

    pub(crate) fn set(&mut self, model: ModelSource) {
        *self = Self { by_position: None, model: Some(model) };
    }
}

#[cfg(test)]
mod tests {
    use crate::arguments::Arguments;
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_model_has_one_place() {
        let commands = [
            ("generate", ""),
            ("chat", ""),
            ("run", ""),
            #[cfg(feature = "server")]
            ("serve", ""),
            ("demo", ""),
            ("certify", ""),
            ("plan", ""),
            ("bench run", ""),
            ("bench quality", "--text t"),
            ("devices", "--gpu 0"),
            ("export", "--gguf f"),
            ("embed", ""),
            #[cfg(feature = "laboratory")]
            ("analyze layers", ""),
            #[cfg(feature = "laboratory")]
            ("simulate calibrate", "--draft-model d"),
            #[cfg(feature = "train")]
            ("distill", "--out o --prompts p"),
        ];
        for (command, options) in commands {
            let parse = |model: &str| {
                let line = format!("forerun {command} {model} {options}");
                Arguments::try_parse_from(line.split_whitespace())
            };
            for model in ["demo", "--model demo", "-m demo"] {
                assert!(parse(model).is_ok(), "{command} {model}: {:?}", parse(model).err());
            }
            let both = parse("demo --model demo").map_err(|error| error.kind()).err();
            assert_eq!(both, Some(ErrorKind::ArgumentConflict), "{command}");
        }
    }
}
