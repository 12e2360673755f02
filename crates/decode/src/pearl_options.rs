//! The options of PEARL, and their text form.

use std::fmt;
use std::str::FromStr;

/// Decides when a round ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PearlSchedule {
    /// With the target's forward pass, as soon as there is a new token.
    #[default]
    Eager,
    /// When the target's forward pass has ended and all γ new tokens are drafted.
    Paper,
}

/// The parts of the algorithm to use. The ablation in the paper's table 4 turns some of them off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PearlOptions {
    /// When a round ends.
    pub schedule: PearlSchedule,
    /// Whether the target scores the next position while there are no unverified tokens: at the
    /// start, and after a rejection. Otherwise the drafter runs alone then.
    pub pre_verify: bool,
    /// Whether the drafter works while there are unverified tokens. Otherwise it waits, and a bonus
    /// token is drawn if all are accepted.
    pub post_verify: bool,
}

impl Default for PearlOptions {
    fn default() -> Self {
        Self { schedule: PearlSchedule::default(), pre_verify: true, post_verify: true }
    }
}

/// A text that does not name a PEARL option.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not one of eager, paper, no-pre-verify, no-post-verify; separate several with commas, \
     as in paper,no-pre-verify"
)]
pub struct UnknownPearlOption(pub String);

impl FromStr for PearlOptions {
    type Err = UnknownPearlOption;

    fn from_str(text: &str) -> Result<Self, UnknownPearlOption> {
        let mut options = Self::default();
        for part in text.split(',') {
            match part.trim() {
                "eager" => options.schedule = PearlSchedule::Eager,
                "paper" => options.schedule = PearlSchedule::Paper,
                "no-pre-verify" => options.pre_verify = false,
                "no-post-verify" => options.post_verify = false,
                other => return Err(UnknownPearlOption(other.to_owned())),
            }
        }
        Ok(options)
    }
}

impl fmt::Display for PearlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.schedule {
            PearlSchedule::Eager => "eager",
            PearlSchedule::Paper => "paper",
        })?;
        f.write_str(if self.pre_verify { "" } else { ",no-pre-verify" })?;
        f.write_str(if self.post_verify { "" } else { ",no-post-verify" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_printed() {
        for text in [
            "eager",
            "paper",
            "paper,no-pre-verify",
            "eager,no-pre-verify,no-post-verify",
            "paper,no-post-verify",
        ] {
            let options: Result<PearlOptions, _> = text.parse();
            assert_eq!(options.map(|options| options.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(
            "no-post-verify".parse(),
            Ok(PearlOptions { post_verify: false, ..PearlOptions::default() })
        );
        let message = "paper,late".parse::<PearlOptions>().map_err(|error| error.to_string());
        assert!(message.is_err_and(|message| message.contains("\"late\"")));
    }
}
