//! The cells of the matrix: combinations of methods, drafters, shapes and options.

use forerun::draft::EasySpec;
use forerun::{
    CalibrationPolicy, DraftTokens, DrafterKind, LayerStrategy, Lookup, Method, PearlOptions, Tree,
};
use forerun_decode::AUTO_IN_TURNS;
use forerun_formats::checkpoint::random_speculator::SpeculatorLayout;
use std::path::PathBuf;

/// One combination of options.
pub(super) struct Cell {
    pub(super) method: Method,
    pub(super) drafter: DrafterKind,
    /// The additional drafters.
    pub(super) additional: &'static [ExtraDrafter],
    pub(super) lookup: Lookup,
    pub(super) draft_tokens: DraftTokens,
    pub(super) tree: Tree,
    pub(super) pearl: PearlOptions,
    pub(super) easyspec: Option<EasySpec>,
    /// The draft model, if it is not the pair's drafter.
    pub(super) draft_model: Option<PathBuf>,
    /// The number of draft positions that must each have a rejection.
    pub(super) must_reject: usize,
    /// The number of draft positions that must each have an accepted token.
    pub(super) must_accept: usize,
}

/// A drafter in addition to the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ExtraDrafter {
    /// The pair's drafter.
    Drafter,
    /// The target itself, which is always right.
    Target,
    PromptLookup,
    /// The drafter of [`super::REPEAT`].
    Own,
}

/// Returns the whole matrix except autoregressive decoding, with which everything is compared. It
/// has all drafters of the registry that need no model.
pub(super) fn cells() -> Vec<Cell> {
    let on_tokens = DrafterKind::all().filter(|kind| kind.is_on_tokens()).flat_map(cells_on_tokens);
    let of_model = speculative_cells(DrafterKind::Model).into_iter();
    let with_lookups = lookup_cells(DrafterKind::Model).into_iter();
    let own = of_model.chain(with_lookups).chain(on_tokens);
    own.chain(feedback_cells()).chain(parallel_cells()).collect()
}

/// Returns the cells of a drafter some of whose drafts are replaced by lookups.
fn lookup_cells(drafter: DrafterKind) -> Vec<Cell> {
    use DraftTokens::{Assisted, Auto, Fixed};
    let top = Tree::Top { width: 4, depth: Some(4), budget: Some(9) };
    let all = [
        (Method::Speculative, Lookup::Suffix, Fixed(1), Tree::None),
        (Method::Speculative, Lookup::Suffix, Fixed(4), Tree::None),
        (Method::Speculative, Lookup::Suffix, Assisted, Tree::None),
        (Method::Speculative, Lookup::Suffix, Auto, Tree::None),
        (Method::Speculative, Lookup::Suffix, Fixed(4), top),
        (Method::Speculative, Lookup::Suffix, Auto, Tree::Auto),
        (Method::Speculative, Lookup::Suffix, Fixed(1), Tree::Sampled { branching: vec![3, 2] }),
        (Method::Ssd, Lookup::Suffix, Fixed(3), Tree::None),
        (Method::Ssd, Lookup::Suffix, Auto, Tree::None),
    ];
    let cell = |(method, lookup, draft_tokens, tree)| Cell {
        lookup,
        draft_tokens,
        tree,
        must_reject: usize::from(draft_tokens != Auto),
        ..cell(method, drafter)
    };
    all.into_iter().map(cell).collect()
}

/// Returns the cells of a drafter without a model, with all methods that offer what it needs.
pub(super) fn cells_on_tokens(drafter: DrafterKind) -> Vec<Cell> {
    if !drafter.traits().needs.is_empty() {
        let lengths = [DraftTokens::Fixed(1), DraftTokens::Fixed(10), DraftTokens::Auto];
        let cell = |(draft_tokens, must_reject)| Cell {
            draft_tokens,
            must_reject,
            ..cell(Method::Speculative, drafter)
        };
        return lengths.into_iter().zip([1, 2, 0]).map(cell).collect();
    }
    let in_parallel = |method, count, pearl: &str, must_reject| Cell {
        draft_tokens: DraftTokens::Fixed(count),
        pearl: pearl.parse().unwrap(),
        must_reject,
        ..cell(method, drafter)
    };
    let mut cells = speculative_cells(drafter);
    cells.extend([
        in_parallel(Method::Pearl, 4, "eager", 1),
        in_parallel(Method::Pearl, 3, "paper", 1),
        // DSI does not wait for late drafters.
        in_parallel(Method::Dsi, 3, "eager", 0),
        in_parallel(Method::Ssd, 3, "eager", 1),
        in_parallel(auto_in_turns(), 3, "eager", 0),
    ]);
    cells
}

/// Returns `auto` with all of its methods in turn: in so short texts, the fastest one would decode
/// most.
fn auto_in_turns() -> Method {
    Method::new(&AUTO_IN_TURNS)
}

/// Returns a cell with default options.
pub(super) fn cell(method: Method, drafter: DrafterKind) -> Cell {
    Cell {
        method,
        drafter,
        additional: &[],
        lookup: Lookup::None,
        draft_tokens: DraftTokens::Auto,
        tree: Tree::None,
        pearl: PearlOptions::default(),
        easyspec: None,
        draft_model: None,
        must_reject: 0,
        must_accept: 0,
    }
}

/// Returns the cells of chains and trees of a drafter that verifies them in turn with drafting.
pub(super) fn speculative_cells(drafter: DrafterKind) -> Vec<Cell> {
    let trees = [
        (DraftTokens::Fixed(1), Tree::None, 1),
        (DraftTokens::Fixed(4), Tree::None, 4),
        (DraftTokens::Auto, Tree::None, 0),
        (DraftTokens::Auto, Tree::Top { width: 3, depth: Some(3), budget: None }, 0),
        (DraftTokens::Auto, Tree::Auto, 0),
        (DraftTokens::Fixed(3), Tree::Auto, 0),
        (DraftTokens::Fixed(4), Tree::Ranked { nodes: 9 }, 2),
        (DraftTokens::Fixed(3), Tree::Top { width: 4, depth: None, budget: None }, 3),
        (DraftTokens::Fixed(4), Tree::Top { width: 4, depth: None, budget: Some(9) }, 2),
        (DraftTokens::Fixed(1), Tree::Sampled { branching: vec![3, 2, 1] }, 3),
    ];
    let cell = |(draft_tokens, tree, must_reject): (_, _, usize)| {
        // A drafter that is never right has no rejections at later positions.
        let is_often_right =
            [DrafterKind::Model, DrafterKind::PromptLookup, DrafterKind::Suffix].contains(&drafter);
        let must_reject = if is_often_right { must_reject } else { must_reject.min(1) };
        Cell { draft_tokens, tree, must_reject, ..cell(Method::Speculative, drafter) }
    };
    trees.into_iter().map(cell).collect()
}

/// Returns the cells of assisted draft lengths and Ouroboros.
fn feedback_cells() -> impl Iterator<Item = Cell> {
    use DraftTokens::{Assisted, Auto, Fixed};
    const OUROBOROS: DrafterKind = DrafterKind::Ouroboros;
    let cell = |(drafter, draft_tokens, tree, must_reject)| Cell {
        draft_tokens,
        tree,
        must_reject,
        ..cell(Method::Speculative, drafter)
    };
    let all = [
        (DrafterKind::Model, Assisted, Tree::None, 1),
        (DrafterKind::PromptLookup, Assisted, Tree::None, 1),
        (OUROBOROS, Fixed(1), Tree::None, 1),
        (OUROBOROS, Fixed(4), Tree::None, 4),
        (OUROBOROS, Auto, Tree::None, 0),
        (OUROBOROS, Assisted, Tree::None, 1),
        (OUROBOROS, Fixed(3), Tree::Top { width: 4, depth: None, budget: Some(9) }, 1),
        (OUROBOROS, Fixed(1), Tree::Sampled { branching: vec![2, 1, 1, 1, 1, 1] }, 1),
    ];
    all.into_iter().map(cell)
}

/// Returns the cells of PEARL and DSI, in every variant, and of methods that choose between
/// drafters.
pub(super) fn parallel_cells() -> impl Iterator<Item = Cell> {
    use DraftTokens::{Auto, Fixed};
    const MODEL: DrafterKind = DrafterKind::Model;
    let pearl = |drafter, draft_tokens, options: &str, must_reject| Cell {
        draft_tokens,
        pearl: options.parse().unwrap(),
        must_reject,
        ..cell(Method::Pearl, drafter)
    };
    // Whether the token of a late drafter is tested at all depends on timing. Rejections in every
    // order are tested by `exact_distribution` and by the runtime's `parallel_fuzz.rs`.
    let dsi = |drafter, draft_tokens| Cell {
        method: Method::Dsi,
        ..pearl(drafter, draft_tokens, "eager", 0)
    };
    [
        pearl(MODEL, Fixed(1), "eager", 1),
        pearl(MODEL, Fixed(4), "eager", 1),
        pearl(MODEL, Auto, "eager", 0),
        pearl(MODEL, Fixed(3), "paper", 3),
        pearl(MODEL, Auto, "paper", 0),
        pearl(MODEL, Fixed(3), "paper,no-pre-verify", 3),
        pearl(MODEL, Fixed(3), "paper,no-post-verify", 2),
        pearl(MODEL, Fixed(2), "eager,no-pre-verify,no-post-verify", 2),
        Cell { method: Method::Ssd, ..pearl(MODEL, Fixed(1), "eager", 1) },
        Cell { method: Method::Ssd, ..pearl(MODEL, Fixed(4), "eager", 4) },
        Cell { method: Method::Ssd, ..pearl(MODEL, Auto, "eager", 0) },
        dsi(MODEL, Fixed(1)),
        dsi(MODEL, Fixed(3)),
        dsi(MODEL, Auto),
        Cell { additional: &[ExtraDrafter::PromptLookup], ..dsi(MODEL, Fixed(3)) },
        Cell { additional: &[ExtraDrafter::Target], ..dsi(MODEL, Fixed(2)) },
        Cell {
            additional: &[ExtraDrafter::Drafter, ExtraDrafter::Target],
            ..dsi(DrafterKind::PromptLookup, Auto)
        },
        Cell { additional: &[ExtraDrafter::Target], ..pearl(MODEL, Auto, "eager", 0) },
        cell(Method::Auto, MODEL),
        Cell { draft_tokens: Fixed(3), ..cell(auto_in_turns(), MODEL) },
        Cell { additional: &[ExtraDrafter::PromptLookup], ..cell(Method::Auto, MODEL) },
        Cell { additional: &[ExtraDrafter::PromptLookup], ..cell(Method::Speculative, MODEL) },
        Cell {
            additional: &[ExtraDrafter::Drafter, ExtraDrafter::Target],
            draft_tokens: Fixed(3),
            ..cell(Method::Speculative, DrafterKind::PromptLookup)
        },
    ]
    .into_iter()
}

/// Returns the cells of EasySpec: layer-parallel sizes and custom groups × chains and trees ×
/// calibration.
pub(super) fn easyspec_cells() -> Vec<Cell> {
    let policies = || [CalibrationPolicy::EveryRound, CalibrationPolicy::Never];
    let trees = [1, 4, 8, 12].map(|width| Tree::Top { width, depth: None, budget: None });
    let sampled = Tree::Sampled { branching: vec![3, 2, 1] };
    let budget = Tree::Top { width: 4, depth: Some(4), budget: Some(9) };
    let ranked = Tree::Ranked { nodes: 9 };
    let shapes = trees.into_iter().chain([Tree::None, sampled, budget, ranked]);
    let own = "0-2,3-7,8".parse().unwrap();
    let strategies: Vec<_> = (1..=5).map(LayerStrategy::Parallel).chain([own]).collect();
    let easyspec_cell =
        |(tree, layers, calibration): (Tree, LayerStrategy, CalibrationPolicy)| Cell {
            draft_tokens: DraftTokens::Fixed(5),
            // A wide tree holds nearly every first token.
            must_reject: usize::from(matches!(tree, Tree::None | Tree::Top { width: 1, .. })),
            tree,
            easyspec: Some(EasySpec { layers, calibration }),
            ..cell(Method::Speculative, DrafterKind::EasySpec)
        };
    let with_policies = |(tree, layers): (Tree, LayerStrategy)| {
        policies().map(move |calibration| (tree.clone(), layers.clone(), calibration))
    };
    let speculative = shapes
        .flat_map(|tree| strategies.clone().into_iter().map(move |layers| (tree.clone(), layers)))
        .flat_map(with_policies)
        .map(easyspec_cell);
    // Parallel methods draft after tokens that are not verified yet.
    let runs_in_parallel = [Method::Pearl, Method::Dsi].into_iter().flat_map(|method| {
        let layers = [1, 2, 4].map(LayerStrategy::Parallel);
        let all = layers.into_iter().map(|layers| (Tree::None, layers)).flat_map(with_policies);
        all.map(move |combination| {
            let cell =
                Cell { method, draft_tokens: DraftTokens::Fixed(3), ..easyspec_cell(combination) };
            // DSI does not wait for late drafters.
            Cell { must_reject: if method == Method::Dsi { 0 } else { cell.must_reject }, ..cell }
        })
    });
    speculative.chain(runs_in_parallel).collect()
}

/// Returns the cells of drafters trained for a target, in every layout. Drafters on tokens support
/// all methods. Those on features support speculative decoding and, but for heads on one hidden
/// state, PEARL.
pub(super) fn speculator_cells(speculators: &[(SpeculatorLayout, PathBuf)]) -> Vec<Cell> {
    use SpeculatorLayout as L;
    let trees = [
        (DraftTokens::Fixed(1), Tree::None),
        (DraftTokens::Fixed(4), Tree::None),
        (DraftTokens::Auto, Tree::None),
        (DraftTokens::Auto, Tree::Auto),
        (DraftTokens::Fixed(4), Tree::Ranked { nodes: 9 }),
        (DraftTokens::Fixed(3), Tree::Top { width: 4, depth: None, budget: None }),
        (DraftTokens::Fixed(4), Tree::Top { width: 4, depth: None, budget: Some(9) }),
        (DraftTokens::Fixed(1), Tree::Sampled { branching: vec![3, 2, 1] }),
    ];
    let mut cells = Vec::new();
    for (layout, path) in speculators {
        let (drafter, reads_features, must_accept) = match layout {
            L::Medusa | L::VllmMedusa | L::SharedHeadMedusa | L::ReducedMedusa => {
                (DrafterKind::Medusa, true, 0)
            }
            L::Hydra | L::HydraPlusPlus | L::SharedHeadHydra | L::ReducedHydra => {
                (DrafterKind::Hydra, true, 0)
            }
            L::Eagle | L::SharedEmbeddingEagle => (DrafterKind::Eagle, true, 2),
            L::ReducedEagle | L::Eagle3 | L::Eagle3With(_) => (DrafterKind::Eagle, true, 0),
            L::DFlash | L::JetSpec => (DrafterKind::DFlash, true, 0),
            L::DFlash2 => (DrafterKind::DFlash2, true, 0),
            L::DSpark(_) => (DrafterKind::DSpark, true, 0),
            L::Assistant => (DrafterKind::Assistant, true, 0),
            L::ParallelMedusa => (DrafterKind::Parallel, false, 1),
            L::ReducedParallelMedusa => (DrafterKind::Parallel, false, 0),
            L::ParallelEagle => (DrafterKind::Parallel, true, 1),
            L::ReducedParallelEagle | L::PEagle | L::Pard2 => (DrafterKind::Parallel, true, 0),
        };
        let own = |method, draft_tokens: DraftTokens, tree: Tree, options: &str| Cell {
            draft_tokens,
            pearl: options.parse().unwrap(),
            draft_model: Some(path.clone()),
            // A wide tree holds nearly every first token, and the draft length of `auto` is not
            // known.
            must_reject: usize::from(
                matches!(tree, Tree::None) && draft_tokens != DraftTokens::Auto,
            ),
            must_accept: match draft_tokens {
                DraftTokens::Auto | DraftTokens::Assisted => 0,
                DraftTokens::Fixed(1) if tree == Tree::None => must_accept.min(1),
                DraftTokens::Fixed(_) => must_accept,
            },
            tree,
            ..cell(method, drafter)
        };
        for (draft_tokens, tree) in trees.clone() {
            cells.push(own(Method::Speculative, draft_tokens, tree, "eager"));
        }
        // Drafts after rounds without the drafter.
        let budget = Tree::Top { width: 4, depth: None, budget: Some(9) };
        for tree in [Tree::None, budget] {
            cells.push(Cell {
                lookup: Lookup::Suffix,
                must_reject: 0,
                must_accept: 0,
                ..own(Method::Speculative, DraftTokens::Fixed(3), tree, "eager")
            });
        }
        // Drafts after rounds of other drafters.
        cells.push(Cell {
            additional: &[ExtraDrafter::Drafter, ExtraDrafter::PromptLookup],
            must_reject: 0,
            must_accept: 0,
            ..own(Method::Speculative, DraftTokens::Fixed(3), Tree::None, "eager")
        });
        if [DrafterKind::Medusa, DrafterKind::Hydra].contains(&drafter) {
            continue;
        }
        let runs_in_parallel = |method, count, options| Cell {
            // Whether the token of a late drafter is tested depends on timing.
            must_reject: 0,
            must_accept: 0,
            ..own(method, DraftTokens::Fixed(count), Tree::None, options)
        };
        cells.extend([
            runs_in_parallel(Method::Pearl, 3, "eager"),
            Cell {
                additional: &[ExtraDrafter::Drafter],
                ..runs_in_parallel(Method::Pearl, 3, "eager")
            },
            runs_in_parallel(Method::Pearl, 3, "paper"),
        ]);
        if !reads_features {
            let methods = [Method::Dsi, Method::Ssd];
            cells.extend(methods.map(|method| runs_in_parallel(method, 2, "eager")));
            cells.push(runs_in_parallel(auto_in_turns(), 3, "eager"));
        }
    }
    cells
}

/// Returns a cell that runs too few texts for a rejection at every position. Wide trees hold nearly
/// every first token.
pub(super) fn with_few_texts(cell: Cell) -> Cell {
    let must_reject = if cell.tree == Tree::None { cell.must_reject.min(1) } else { 0 };
    Cell { must_reject, ..cell }
}

/// Counts a cell's drafters that are models.
pub(super) fn models_of(cell: &Cell) -> usize {
    let on_tokens = [ExtraDrafter::PromptLookup, ExtraDrafter::Own];
    let additional = cell.additional.iter().filter(|&kind| !on_tokens.contains(kind));
    usize::from(cell.drafter.has_model()) + additional.count()
}
