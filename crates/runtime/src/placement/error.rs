//! The errors of placements.

/// An invalid placement.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum PlacementError {
    /// The placement does not follow the grammar.
    #[error(
        "cannot read {part:?} in the placement {text:?}; write, for example, \
         \"drafter=cpu:0,target=cpu:1-3\"; join ranges of cores with '+' (cpu:0+cpu:4-7), split a \
         target's layers between groups with '/' (target=cpu:0/cpu:1), and add \",shared\" if drafter and \
         target run on the same device; name GPUs as in \"drafter=cpu:0-3,target=gpu:0\", and the processes of an MPI job as in \
         \"drafter=rank:0,target=rank:1\"; add \",paced=NAME\" for the pass times of a profile"
    )]
    Syntax { part: String, text: String },
    /// A group names a core that this process may not use.
    #[error("group {group} names core {core}, but this process may only use cpu:{available}")]
    NoSuchCore { group: String, core: usize, available: String },
    /// A group names a core with an id above those of any machine.
    #[error("group {group} names core {core}, but core ids are at most {largest}")]
    CoreTooLarge { group: String, core: usize, largest: usize },
    /// A group names a core twice.
    #[error("group {group} names core {core} twice; name each core once")]
    DuplicateCore { group: String, core: usize },
    /// A core is in two groups that are not declared shared.
    #[error(
        "core {core} is in two groups, {first} and {second}; give each its own cores, or add \
         \",shared\" and give both exactly the same cores"
    )]
    Overlap { core: usize, first: String, second: String },
    /// A core belongs to a model on several groups and to a model on a single group.
    #[error(
        "core {core} is in {first}, the groups of a model on several devices, and in {second}, the group \
         of a model on one device; these cannot share cores; give each its own cores, or name the target's \
         first and last group for the drafter, as in \
         \"drafter=cpu:0/cpu:1,target=cpu:0/cpu:1,shared\""
    )]
    MixedDevices { core: usize, first: String, second: String },
    /// A drafter has several groups that are not the first and the last of a target. `target` has
    /// those two, if it has several.
    #[error(
        "drafter={drafter} names several groups, but they must be the first and the last group of a target \
         that is split between several groups; {}",
        target.as_ref().map_or_else(
            || "give the drafter one group, or the target several (target=cpu:0/cpu:1)".to_owned(),
            |groups| format!("write drafter={groups}"),
        )
    )]
    NotFirstAndLast { drafter: String, target: Option<String> },
    /// The layers of a model are split between ranks and something else.
    #[error(
        "{group} splits the layers of a model between ranks, but not into one rank for each stage: separate single ranks by \
         '/', as in target=rank:1/rank:2, or let the ranks compute each layer together, as in target=rank:1+rank:2"
    )]
    MixedStages { group: String },
    /// A group names a rank twice.
    #[error("the group {group} names rank {rank} twice")]
    DuplicateRank { group: String, rank: usize },
    /// A rank that computes a model together with others has another model, too.
    #[error(
        "rank {rank} computes a model together with the other ranks of {group}, so no other model can be there; \
         give the other model a rank of its own"
    )]
    SharedMember { rank: usize, group: String },
    /// Some groups name ranks, and others cores.
    #[error(
        "the placement {text:?} names both ranks and cores; give ranks or cores to all groups (a rank uses \
         the cores that its process may use)"
    )]
    RanksAndCores { text: String },
    /// A rank is in two groups that are not declared shared.
    #[error(
        "rank {rank} is in two groups; give each a rank of its own, or add \",shared\" so that the models \
         take turns"
    )]
    SharedRank { rank: usize },
    /// A model is spread over several GPUs, or over a GPU and cores.
    #[error(
        "{group} spreads a model over a GPU and other devices; give each model one GPU, or split a target between one GPU \
         and cores, in this order: target=gpu:0/cpu:0-7"
    )]
    JoinedGpus { group: String },
    /// A drafter is split between a GPU and cores.
    #[error(
        "{group} splits a drafter between a GPU and cores, which only targets can be; place it on one of them"
    )]
    SplitDrafter { group: String },
    /// A GPU is in two groups that are not declared shared.
    #[error(
        "GPU {gpu} is in two groups; give each a GPU of its own, or add \",shared\" so that the models take turns"
    )]
    SharedGpu { gpu: usize },
    /// Some target replicas are on GPUs, and others on cores.
    #[error(
        "one target replica is on {gpu} and another one on {other}, which round differently, so the text would depend \
         on which of them is faster; give all replicas devices of the same kind (and the same number of layers on a GPU, \
         if they are split)"
    )]
    MixedReplicas { gpu: String, other: String },
    /// The pass times that a placement names cannot be used.
    #[error("cannot pace the devices as {name:?}: {reason}")]
    NoPace { name: String, reason: String },
    /// Paced devices are declared shared.
    #[error(
        "leave \"shared\" out: each paced device has one model, and several may name the same cores"
    )]
    PacedShared,
    /// A paced model is on several devices, or in other processes.
    #[error(
        "only models on one group of cores, or on one GPU, of this process can be paced, not {group}"
    )]
    PacedGroup { group: String },
    /// The placement has a drafter, but the profile that paces it has none.
    #[error(
        "the profile {name:?} has no times of a drafter: leave the drafter out, or name another profile"
    )]
    NoPaceOfDrafter { name: String },
    /// A required role has no group.
    #[error("the placement {text:?} has no {role} group; add one, for example \"{role}=cpu:0\"")]
    MissingGroup { role: &'static str, text: String },
    /// A role has more groups than the method uses.
    #[error(
        "the placement {text:?} has {count} {role} groups, but this method uses {}; remove the others",
        if *used == 1 { "one".to_owned() } else { used.to_string() }
    )]
    TooManyGroups { role: &'static str, count: usize, used: usize, text: String },
    /// There are fewer drafter groups than drafters.
    #[error(
        "the placement {text:?} has {count} drafter group{} for {drafters} drafters with models; add a \
         group for each drafter (if drafters share cores, repeat the group and add \",shared\")",
        if *count == 1 { "" } else { "s" }
    )]
    TooFewGroups { count: usize, drafters: usize, text: String },
}
