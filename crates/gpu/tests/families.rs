//! Examples of families by name.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::configs;
use forerun_formats::{Config, Family};

/// Returns an example of a family, with sizes that GPUs compute.
pub(crate) fn config_of(family: Family) -> Config {
    let of_family = |config: &Config| config.family == family;
    configs().into_iter().rfind(of_family).unwrap()
}
