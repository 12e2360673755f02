//! The messages, and their bytes: one byte for the format, then the message in postcard's encoding.

use crate::WireError;
use crate::held::{FeaturesDelta, TokensDelta};
use crate::rows::{CompactFeatures, CompactRow};
use forerun_core::{
    Completion, DraftShape, JobOutput, Proposal, Role, SequenceId, Ticket, TokenTree, VerifiedDraft,
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The number of the format. It changes with every change of a message.
const FORMAT: u8 = 3;

/// A message to the end that runs jobs.
#[expect(clippy::large_enum_variant, reason = "nearly all messages are jobs")]
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWorker<'a> {
    Job(JobMessage<'a>),
    Cancel(Ticket),
    Release(SequenceId),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobMessage<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) role: Role,
    pub(crate) sequence: SequenceId,
    pub(crate) tokens: TokensDelta<'a>,
    pub(crate) prompt_len: usize,
    pub(crate) work: Work<'a>,
}

/// What is special to the kind of job.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Work<'a> {
    Draft {
        shape: Cow<'a, DraftShape>,
        features: FeaturesDelta<'a>,
        last_draft: Option<Cow<'a, VerifiedDraft>>,
    },
    Score {
        tree: Cow<'a, TokenTree>,
        logprobs: Option<usize>,
        features_from: Option<usize>,
    },
}

/// A message to the end that submits jobs.
#[expect(clippy::large_enum_variant, reason = "nearly all messages are completions")]
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToHost<'a> {
    Completion(CompletionMessage<'a>),
    /// The worker does not hold what this job refers to.
    Missing(Ticket),
}

/// A completion, with its rows in a compact form.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CompletionMessage<'a> {
    /// The completion without its rows and features.
    rest: Cow<'a, Completion>,
    /// The rows of the scores, or those that the draft was drawn from.
    rows: Vec<CompactRow<'a>>,
    features: Option<CompactFeatures<'a>>,
}

impl CompletionMessage<'_> {
    /// Writes a completion as a message to the host.
    pub(crate) fn write(mut completion: Completion) -> Vec<u8> {
        let (rows, features) = match &mut completion.output {
            Ok(JobOutput::Score(scores)) => {
                (std::mem::take(&mut scores.rows), scores.features.take())
            }
            Ok(JobOutput::Draft(draft)) => match &mut draft.proposal {
                Proposal::Sampled(rows) => (std::mem::take(rows), None),
                Proposal::Deterministic => (Vec::new(), None),
            },
            Err(_) => (Vec::new(), None),
        };
        write(&ToHost::Completion(CompletionMessage {
            rest: Cow::Borrowed(&completion),
            rows: rows.iter().map(CompactRow::new).collect(),
            features: features.as_ref().map(CompactFeatures::new),
        }))
    }

    /// Returns the ticket of the completed job.
    pub(crate) fn ticket(&self) -> Ticket {
        self.rest.ticket
    }

    /// Returns the completion with its rows and features.
    pub(crate) fn into_completion(self) -> Result<Completion, WireError> {
        let mut completion = self.rest.into_owned();
        let rows: Result<Vec<_>, _> =
            self.rows.into_iter().map(CompactRow::into_distribution).collect();
        let features = self.features.map(CompactFeatures::into_rows).transpose()?;
        match (&mut completion.output, rows?, features) {
            (Ok(JobOutput::Score(scores)), rows, features) => {
                (scores.rows, scores.features) = (rows, features);
            }
            (Ok(JobOutput::Draft(draft)), rows, None) => match &mut draft.proposal {
                Proposal::Sampled(of_draft) => *of_draft = rows,
                Proposal::Deterministic if rows.is_empty() => {}
                Proposal::Deterministic => {
                    return Err(WireError::Invalid("a deterministic draft has rows"));
                }
            },
            (Err(_), rows, None) if rows.is_empty() => {}
            _ => return Err(WireError::Invalid("a completion has rows or features of no output")),
        }
        Ok(completion)
    }
}

pub(crate) fn write(message: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(message, vec![FORMAT]).expect("all messages can be serialised")
}

/// Reads a message. Fails if the bytes are not exactly one message of this format.
pub(crate) fn read<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Result<M, WireError> {
    match bytes.split_first() {
        None => Err(WireError::Malformed("it is empty".into())),
        Some((&FORMAT, message)) => match postcard::take_from_bytes(message)? {
            (message, []) => Ok(message),
            (_, rest) => Err(WireError::Malformed(format!("it has {} bytes too many", rest.len()))),
        },
        Some((&found, _)) => Err(WireError::Format { expected: FORMAT, found }),
    }
}
