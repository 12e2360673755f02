//! Configurations as they are certified, and their names.

use forerun::{DraftTokens, Lookup, Method, MethodOptions, Options, Placement, Plan, Tree};
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
    let mut method = options.method.clone();
    match &mut method {
        Some(MethodOptions::Speculative { tree, .. } | MethodOptions::Own { tree, .. })
            if *tree == Tree::Auto =>
        {
            *tree = Tree::Ranked { nodes: TREE_NODES };
        }
        Some(given) if given.method() == Method::Auto => {
            *given = Method::new(&AUTO_IN_TURNS).into();
        }
        _ => {}
    }
    Options { method, draft_tokens, ..options.clone() }
}

/// Returns the options of plain decoding with the target of these options.
pub(crate) fn plain(options: &Options) -> Options {
    Options {
        method: Some(Method::Autoregressive.into()),
        placement: placement_on_gpu(options),
        ..options.clone()
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
    let drafts = match (options.tree(), options.draft_tokens) {
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
    let method = options.method.as_ref().map(|method| method.method().to_string());
    method.unwrap_or_else(|| "automatic method".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_certified_can_pause() {
        let of = |method| Options { method: Some(method), ..Options::default() };
        let growing = MethodOptions::Speculative { tree: Tree::Auto, lookup: Lookup::None };
        let found = certified(&of(growing));
        assert_eq!(found.draft_tokens, DraftTokens::Fixed(DRAFT_TOKENS));
        assert_eq!(*found.tree(), Tree::Ranked { nodes: TREE_NODES });
        // It is placed and answers as `auto`.
        assert_eq!(certified(&of(Method::Auto.into())).method, Some(Method::Auto.into()));
        let draft_tokens = DraftTokens::Fixed(3);
        let given = Options { draft_tokens, ..of(Method::Pearl.into()) };
        let found = certified(&given);
        assert_eq!((found.method, found.draft_tokens), (given.method, given.draft_tokens));
    }
}
