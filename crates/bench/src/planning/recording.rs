//! What drafters propose after the target's own text, position by position.

use super::laboratory::Bench;
use super::{PlanningError, Setting};
use forerun::{DrafterKind, ModelSource, TokenId};
use forerun_core::{
    Cluster, Draft, DraftShape, FeatureRows, Features, Job, JobOutput, Role, Sampling, ScoreJob,
    SequenceId, TargetFeedback, TokenTree,
};
use forerun_sim::planning::DrafterRecord;
use std::sync::Arc;

/// The longest draft that is recorded. Automatic lengths are at most as long, and trees at most as
/// deep.
pub(super) const LONGEST: usize = 16;
/// The candidates of a depth that are recorded: no tree of ranked candidates has more after one
/// token.
const CANDIDATES: usize = 10;
/// The depths of a tree that are drafted beyond those that are known. Few drafts are accepted much
/// further.
const STEP: usize = 3;

/// Drafts at every position of the target's answers.
pub(super) struct Recorder<'a> {
    pub(super) bench: &'a Bench,
    pub(super) setting: &'a Setting,
    /// Whether to record the ranks of the target's tokens.
    pub(super) with_ranks: bool,
    /// Returns whether to stop early, which is an error.
    pub(super) must_stop: &'a dyn Fn() -> bool,
}

/// An answer of the target, with the features that its drafter reads.
struct Text {
    sequence: SequenceId,
    tokens: Vec<TokenId>,
    prompt_len: usize,
    /// Those of all tokens but the last, a row each, which all jobs share; empty if the drafter
    /// reads none.
    features: Vec<Arc<FeatureRows>>,
}

impl Text {
    /// Returns the features of the tokens that the target has read before it gives the token at
    /// `end`. All but the last of the tokens before that have some.
    fn features_before(&self, end: usize) -> Features {
        self.features.iter().take(end.saturating_sub(1)).cloned().collect()
    }
}

impl Recorder<'_> {
    /// Returns what the drafter proposes after every prefix of the target's answers. Its drafts are
    /// those that it would make in an answer: a drafter on features gets those that the target has
    /// there.
    pub(super) fn record(&self, texts: &[Vec<TokenId>]) -> Result<DrafterRecord, PlanningError> {
        let plan = &self.setting.plan;
        let pattern = self.bench.engine.draft_pattern();
        let drafter = plan.drafter();
        let model = plan.draft_model().filter(|_| drafter.has_model());
        let model = model.filter(|model| !matches!(model, ModelSource::Embedded(_)));
        let mut record = DrafterRecord {
            name: drafter.to_string(),
            model: model.map(ToString::to_string),
            positions: pattern.positions,
            one_forward: pattern.one_forward,
            reads_features: self.bench.engine.reads_features(),
            ..DrafterRecord::default()
        };
        let mut cluster = self.bench.engine.cluster();
        for (index, (prompt, answer)) in self.bench.prompts.iter().zip(texts).enumerate() {
            let mut text = Text {
                // The engine's own sequences count up from 0.
                sequence: SequenceId(u64::MAX - index as u64),
                tokens: [&prompt[..], answer].concat(),
                prompt_len: prompt.len(),
                features: Vec::new(),
            };
            if record.reads_features {
                text.features = self.features(&mut *cluster, &text)?;
            }
            if self.setting.reads_text_alone() {
                let ranks = self.ranks_of_tokens(&mut *cluster, &text)?;
                let is_right = |rank: &Option<usize>| if *rank == Some(0) { '1' } else { '0' };
                record.agreement.push(ranks.iter().map(is_right).collect());
                if self.with_ranks {
                    let from = |at: usize| ranks[at..].iter().map_while(|&rank| rank).take(LONGEST);
                    record.ranks.push((0..ranks.len()).map(|at| from(at).collect()).collect());
                }
            } else {
                let longest = pattern.positions.unwrap_or(LONGEST).min(LONGEST);
                self.record_drafts(&mut *cluster, &text, longest, &mut record)?;
            }
            cluster.release(text.sequence);
        }
        Ok(record)
    }

    /// Returns the target's features of all tokens but the last, a row each.
    fn features(
        &self,
        cluster: &mut dyn Cluster,
        text: &Text,
    ) -> Result<Vec<Arc<FeatureRows>>, PlanningError> {
        let job = Job::Score(ScoreJob {
            sequence: text.sequence,
            tokens: text.tokens[..text.tokens.len() - 1].into(),
            prompt_len: text.prompt_len,
            tree: TokenTree::new(),
            sampling: Sampling::greedy(),
            logprobs: None,
            features_from: Some(0),
        });
        match self.run(cluster, Role::Target(0), job)? {
            JobOutput::Score(scores) => {
                let rows = scores.features.unwrap_or_default();
                Ok((0..rows.len()).map(|row| Arc::new(rows.gather([row]))).collect())
            }
            JobOutput::Draft(_) => Err(self.failed("a score job returned a draft".into())),
        }
    }

    /// Returns the rank of each token of the answer among the candidates of a drafter that depends
    /// on nothing but the tokens before it. Such a drafter proposes the same in every draft.
    fn ranks_of_tokens(
        &self,
        cluster: &mut dyn Cluster,
        text: &Text,
    ) -> Result<Vec<Option<usize>>, PlanningError> {
        let shape = match self.with_ranks {
            true => DraftShape::Ranked { children: vec![CANDIDATES] },
            false => DraftShape::Chain { length: 1 },
        };
        let rank = |end: usize| {
            let draft = self.draft(cluster, text, end, shape.clone())?;
            Ok(draft.tree.tokens().iter().position(|&token| token == text.tokens[end]))
        };
        (text.prompt_len..text.tokens.len()).map(rank).collect()
    }

    /// Records the whole drafts at every position of an answer, of at most `longest` tokens, and
    /// their ranks.
    fn record_drafts(
        &self,
        cluster: &mut dyn Cluster,
        text: &Text,
        longest: usize,
        record: &mut DrafterRecord,
    ) -> Result<(), PlanningError> {
        let (mut drafts, mut ranks) = (Vec::new(), Vec::new());
        // From the end, so that no draft seems to continue the one before it.
        for end in (text.prompt_len..text.tokens.len()).rev() {
            // The target has read nothing before an answer's first round.
            let (length, agreed) = match record.reads_features && end == text.prompt_len {
                true => (0, 0),
                false => self.longest_draft(cluster, text, end, (longest, record.one_forward))?,
            };
            drafts.push((length, agreed));
            if self.with_ranks {
                ranks.push(match length {
                    0 => Vec::new(),
                    _ => self.ranks_of_draft(cluster, text, end, (agreed, longest))?,
                });
            }
        }
        drafts.reverse();
        ranks.reverse();
        record.drafts.push(drafts);
        if self.with_ranks {
            record.ranks.push(ranks);
        }
        Ok(())
    }

    /// Returns the length of the longest draft after the first `end` tokens of a text, of at most
    /// `longest` tokens, and how many of its tokens are the text's.
    fn longest_draft(
        &self,
        cluster: &mut dyn Cluster,
        text: &Text,
        end: usize,
        (longest, one_forward): (usize, bool),
    ) -> Result<(usize, usize), PlanningError> {
        let agreed = |draft: &Draft| {
            let tokens = draft.tree.tokens().iter().zip(&text.tokens[end..]);
            tokens.take_while(|(drafted, own)| drafted == own).count()
        };
        // A drafter that goes token by token drafts as many as it is asked for. Those after a wrong
        // one make no difference.
        let short = longest.min(STEP + 1);
        let is_model = self.setting.plan.drafter() != DrafterKind::PromptLookup;
        if is_model && !one_forward {
            let draft = self.draft(cluster, text, end, DraftShape::Chain { length: short })?;
            let agreed = agreed(&draft);
            if draft.tree.len() == short && agreed < short {
                return Ok((longest, agreed));
            }
        }
        let draft = self.draft(cluster, text, end, DraftShape::Chain { length: longest })?;
        Ok((draft.tree.len(), agreed(&draft)))
    }

    /// Returns the ranks of the answer's tokens from `end` on in one draft, along the path of these
    /// tokens. The first `agreed` are the drafter's best.
    fn ranks_of_draft(
        &self,
        cluster: &mut dyn Cluster,
        text: &Text,
        end: usize,
        (agreed, longest): (usize, usize),
    ) -> Result<Vec<usize>, PlanningError> {
        let mut ranks = vec![0; agreed];
        let left = &text.tokens[end..];
        let depths = longest.min(left.len());
        while ranks.len() < depths {
            let asked = (ranks.len() + STEP).min(depths);
            let mut path = ranks.clone();
            path.resize(asked, 0);
            let draft = self.draft(cluster, text, end, along(&path))?;
            let mut at = None;
            for (depth, &token) in left[..asked].iter().enumerate() {
                let rank = draft.tree.children(at).position(|node| draft.tree.token(node) == token);
                let Some(rank) = rank else { return Ok(ranks) };
                if depth == ranks.len() {
                    ranks.push(rank);
                    // The tree goes on after its best candidate.
                    if rank > 0 {
                        break;
                    }
                }
                at = draft.tree.child_with(at, token);
            }
        }
        Ok(ranks)
    }

    /// Returns the draft after the first `end` tokens of a text.
    fn draft(
        &self,
        cluster: &mut dyn Cluster,
        text: &Text,
        end: usize,
        shape: DraftShape,
    ) -> Result<Draft, PlanningError> {
        let job = Job::Draft {
            sequence: text.sequence,
            tokens: Arc::from(&text.tokens[..end]),
            prompt_len: text.prompt_len,
            sampling: Sampling::greedy(),
            shape,
            feedback: TargetFeedback { features: text.features_before(end), last_draft: None },
        };
        match self.run(cluster, Role::Drafter(0), job)? {
            JobOutput::Draft(draft) => Ok(draft),
            JobOutput::Score(_) => Err(self.failed("a draft job returned scores".into())),
        }
    }

    fn run(
        &self,
        cluster: &mut dyn Cluster,
        role: Role,
        job: Job,
    ) -> Result<JobOutput, PlanningError> {
        if (self.must_stop)() {
            return Err(PlanningError::Stopped);
        }
        cluster.submit(role, job).map_err(|error| self.failed(error.to_string()))?;
        let completion =
            cluster.next_completion().map_err(|error| self.failed(error.to_string()))?;
        completion.output.map_err(|error| self.failed(error.to_string()))
    }

    fn failed(&self, cause: String) -> PlanningError {
        PlanningError::Job { setting: self.setting.to_string(), cause }
    }
}

/// Returns the tree whose rows along a path of ranks have all recorded candidates, and the others
/// none.
fn along(path: &[usize]) -> DraftShape {
    let mut children = vec![CANDIDATES];
    for rank in &path[..path.len() - 1] {
        // The rows of a depth are the candidates after the path's row.
        let mut depth = vec![0; CANDIDATES];
        depth[*rank] = CANDIDATES;
        children.extend(depth);
    }
    DraftShape::Ranked { children }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_share_the_rows_of_a_text() {
        let row = |token: usize| Arc::new(FeatureRows::new(2, vec![token as f32; 2]));
        let text = Text {
            sequence: SequenceId(0),
            tokens: (0..4).collect(),
            prompt_len: 2,
            features: (0..3).map(row).collect(),
        };
        let (early, late) = (text.features_before(2), text.features_before(4));
        assert_eq!((early.len(), late.len()), (1, 3));
        assert!(Arc::ptr_eq(&early.parts()[0], &late.parts()[0]));
        assert!(Arc::ptr_eq(&text.features[2], &late.parts()[2]));
    }

    #[test]
    fn a_tree_along_a_path_has_candidates_after_the_path_only() {
        let shape = along(&[2, 0, 1]);
        assert_eq!((shape.depth(), shape.max_nodes()), (3, 3 * CANDIDATES));
        assert_eq!(shape.parents_by_depth(), [1; 3]);
        let DraftShape::Ranked { children } = shape else { panic!() };
        let with_children: Vec<usize> =
            (0..children.len()).filter(|&row| children[row] > 0).collect();
        // Row 0 is the prefix; its third candidate is row 3; the best candidate after that is row
        // 11.
        assert_eq!(with_children, [0, 3, 11]);
    }
}
