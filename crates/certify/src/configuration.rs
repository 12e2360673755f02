//! Configurations as they are certified, and their names.

use forerun::{DraftTokens, Lookup, Method, Options, Placement, Plan, Tree};
use forerun_core::Role;
use forerun_decode::AUTO_IN_TURNS;

/// The number of draft tokens in place of an automatic one.
const DRAFT_TOKENS: usize = 4;
/// The size of the tree in place of one that grows.
const TREE_NODES: usize = 8;

/// Returns a configuration as it is certified. Its drafts have a fixed size, because automatic ones
/// pause where they do not pay, and nothing that is not drafted is checked. The methods of `auto`
/// take turns, because it may use only one of them otherwise.
pub(crate) fn certified(options: &Options) -> Options {
    let draft_tokens = match options.draft_tokens {
        DraftTokens::Auto => DraftTokens::Fixed(DRAFT_TOKENS),
        given => given,
    };
    let tree = match &options.tree {
        Tree::Auto => Tree::Ranked { nodes: TREE_NODES },
        given => given.clone(),
    };
    let method = options.method.map(|method| match method == Method::Auto {
        true => Method::new(&AUTO_IN_TURNS),
        false => method,
    });
    Options { method, draft_tokens, tree, ..options.clone() }
}

/// Returns the options of plain decoding with the target of these options.
pub(crate) fn plain(options: &Options) -> Options {
    Options {
        model: options.model.clone(),
        method: Some(Method::Autoregressive),
        weight_type: options.weight_type,
        cache_type: options.cache_type,
        cache_bytes: options.cache_bytes,
        threads: options.threads,
        placement: placement_on_gpu(options),
        gpu_layers: options.gpu_layers,
        ..Options::default()
    }
}

/// Returns the placement of the target if it is on a GPU, as a whole or in part: devices round
/// differently. On cores, it has the same bits on any of them.
fn placement_on_gpu(options: &Options) -> Option<Placement> {
    let placement = options.placement.as_ref()?;
    placement.gpu_of(Role::Target(0)).map(|_| placement.of_first_target())
}

/// Names a configuration: its method, drafter, drafts and placement.
pub(crate) fn name_of(plan: &Plan, options: &Options) -> String {
    let (method, placement) = (plan.method(), plan.placement());
    if !method.drafts() {
        return format!("{method}, {placement}");
    }
    let drafts = match (&options.tree, options.draft_tokens) {
        (Tree::None, DraftTokens::Fixed(count)) => format!("{count} draft tokens"),
        (Tree::None, DraftTokens::Auto) => "automatic length".to_owned(),
        (Tree::None, DraftTokens::Assisted) => "assisted length".to_owned(),
        (tree, _) => format!("tree {tree}"),
    };
    let lookup = match plan.lookup() {
        Lookup::None => String::new(),
        lookup => format!(" + {lookup}"),
    };
    let turns = if method == Method::Auto { " with its methods in turn" } else { "" };
    format!("{method}{turns}, drafter {}{lookup}, {drafts}, {placement}", plan.drafter())
}

/// Names a configuration that cannot run.
pub(crate) fn described(options: &Options) -> String {
    options.method.map_or_else(|| "automatic method".to_owned(), |method| method.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_certified_can_pause() {
        let automatic =
            Options { method: Some(Method::Auto), tree: Tree::Auto, ..Options::default() };
        let found = certified(&automatic);
        assert_eq!(found.draft_tokens, DraftTokens::Fixed(DRAFT_TOKENS));
        assert_eq!(found.tree, Tree::Ranked { nodes: TREE_NODES });
        // It is placed and answers as `auto`.
        assert_eq!(found.method, Some(Method::Auto));
        let given = Options {
            method: Some(Method::Pearl),
            draft_tokens: DraftTokens::Fixed(3),
            ..Options::default()
        };
        let found = certified(&given);
        assert_eq!((found.method, found.draft_tokens), (given.method, given.draft_tokens));
        assert_eq!(found.tree, Tree::None);
    }
}
