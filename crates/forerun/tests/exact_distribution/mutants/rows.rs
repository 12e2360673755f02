//! Mutants of rows: a row of the target's scores is taken for another one.

use crate::methods::{dsi, pearl_with_siblings};
use crate::mutants::{Mutant, Setup, SharedModels};
use forerun_core::{
    Cluster, ClusterError, Completion, Job, JobOutput, Outcome, Role, ScoreJob, Scores, SequenceId,
    Ticket, TokenTree, row_of,
};
use forerun_decode::{DecodeError, Decoder, Sequence};
use std::collections::BTreeMap;

pub(crate) fn mutants(models: &SharedModels) -> Vec<Mutant> {
    let mutant = |method: &str, decoder: fn() -> Box<dyn Decoder>| {
        let mutated = move || -> Box<dyn Decoder> {
            Box::new(WrongRows { decoder: decoder(), trees: BTreeMap::new() })
        };
        let name = format!("the row after a sibling is that after the draft token, {method}");
        let original = Setup::with_model(models, decoder).in_parallel();
        Mutant::new(name, original, Setup::with_model(models, mutated).in_parallel())
    };
    vec![
        mutant("pearl", || Box::new(pearl_with_siblings(2, "paper,no-pre-verify", 1))),
        mutant("dsi", || Box::new(dsi(2, 1).with_siblings(1))),
    ]
}

/// A decoder whose siblings have the rows of the draft tokens that they are next to.
struct WrongRows {
    decoder: Box<dyn Decoder>,
    /// The trees of the score jobs in flight.
    trees: BTreeMap<Ticket, TokenTree>,
}

impl Decoder for WrongRows {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        self.decoder.step(sequence, &mut WithWrongRows { cluster, trees: &mut self.trees })
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.decoder.stop(cluster);
    }
}

struct WithWrongRows<'a> {
    cluster: &'a mut dyn Cluster,
    trees: &'a mut BTreeMap<Ticket, TokenTree>,
}

impl Cluster for WithWrongRows<'_> {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let tree = match &job {
            Job::Score(ScoreJob { tree, .. }) => tree.clone(),
            Job::Draft { .. } => TokenTree::new(),
        };
        let ticket = self.cluster.submit(on, job)?;
        self.trees.insert(ticket, tree);
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let mut completion = self.cluster.next_completion()?;
        let tree = self.trees.remove(&completion.ticket);
        if let (Some(tree), Ok(JobOutput::Score(scores))) = (tree, &mut completion.output) {
            give_siblings_the_first_ones_rows(&tree, scores);
        }
        Ok(completion)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cluster.release(sequence);
    }
}

fn give_siblings_the_first_ones_rows(tree: &TokenTree, scores: &mut Scores) {
    for node in 0..tree.len() {
        let first = tree.children(tree.parent(node)).next();
        scores.rows[row_of(Some(node))] = scores.rows[row_of(first)].clone();
    }
}
