//! Placements that cannot be.

/// A placement that cannot be.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlacementError {
    /// Not the grammar.
    #[error(
        "cannot read {part:?} in the placement {text:?}; write for example \
         \"drafter=cpu:0,target=cpu:1-3\", join ranges by '+' (cpu:0+cpu:4-7), cut a target's layers \
         by '/' (target=cpu:0/cpu:1), and add \",shared\" where drafter and target run on the same cores"
    )]
    Syntax {
        /// The part that is not understood.
        part: String,
        /// The whole.
        text: String,
    },
    /// A core that this process may not use.
    #[error("group {group} names core {core}, but the cores here are {available}")]
    NoSuchCore {
        /// The group as it was written.
        group: String,
        /// The core.
        core: usize,
        /// The cores that may be used.
        available: String,
    },
    /// A core twice in one group.
    #[error("group {group} names core {core} twice; name each core once")]
    Twice {
        /// The group as it was written.
        group: String,
        /// The core.
        core: usize,
    },
    /// A core in two groups that are not declared shared.
    #[error(
        "core {core} is in two groups, {first} and {second}; give each its own cores, or add \
         \",shared\" and give both exactly the same cores"
    )]
    Overlap {
        /// The core.
        core: usize,
        /// One group.
        first: String,
        /// The other.
        second: String,
    },
    /// A core of a model that has several groups in turn, and of one that does not.
    #[error(
        "core {core} is in {first}, which has several groups in turn, and in {second}, which does not: \
         one of them cannot wait for the other; give each its own cores, or name the target's first \
         and last group for the drafter, as in \"drafter=cpu:0/cpu:1,target=cpu:0/cpu:1,shared\""
    )]
    Mixed {
        /// The core.
        core: usize,
        /// Who has several groups.
        first: String,
        /// Who has one.
        second: String,
    },
    /// A drafter with groups in turn that are not those of a target.
    #[error(
        "drafter={drafter} names several groups, but these must be the first and the last of a target \
         whose layers are on several: {}",
        target.as_ref().map_or_else(
            || "give the drafter one group, or the target several (target=cpu:0/cpu:1)".to_owned(),
            |own| format!("here drafter={own}"),
        )
    )]
    Halves {
        /// The drafter's groups.
        drafter: String,
        /// The first and the last of the target's, if it has several.
        target: Option<String>,
    },
    /// No group for a role that is needed.
    #[error("the placement {text:?} has no {role} group; add for example \"{role}=cpu:0\"")]
    Missing {
        /// `target` or `drafter`.
        role: &'static str,
        /// The whole.
        text: String,
    },
    /// More groups of a role than the method uses.
    #[error("the placement {text:?} has {count} {role} groups, but this method uses {}",
        if *used == 1 { "one".to_owned() } else { used.to_string() })]
    TooMany {
        /// `target` or `drafter`.
        role: &'static str,
        /// How many there are.
        count: usize,
        /// How many are used.
        used: usize,
        /// The whole.
        text: String,
    },
    /// Fewer groups than drafters.
    #[error(
        "the placement {text:?} has {count} drafter group{} for {drafters} drafters with models; give \
         each one, and where they run on the same cores name these twice and add \",shared\"",
        if *count == 1 { "" } else { "s" }
    )]
    TooFew {
        /// How many there are.
        count: usize,
        /// Drafters that need one.
        drafters: usize,
        /// The whole.
        text: String,
    },
}
