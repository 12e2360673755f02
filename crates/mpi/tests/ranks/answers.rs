//! Answers over ranks are those of one process: methods, drafters, families, ways to share a model.

use crate::job::{Models, TRANSPORTS, Task, expected};
use forerun::checkpoint::Config;
use forerun_core::testing::is_complete;
use forerun_formats::checkpoint::random::{example_config, example_families};
use forerun_formats::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};
use forerun_formats::{Checkpoint, MarkovKind, QkNorms};

/// Methods and drafters on two to four ranks.
fn tasks(models: &Models) -> Vec<Task> {
    let task = |method, kind, placement| Task::new(models, method, kind, placement);
    let trained = |kind: &'static str, placement: &'static str| {
        let demonstration = |name| format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR"));
        let (target, drafter) = (demonstration("target"), demonstration(kind));
        Task { target, drafter, ..task("speculative", kind, placement) }
    };
    vec![
        task("autoregressive", "none", "target=rank:1"),
        task("speculative", "model", "drafter=rank:0,target=rank:1"),
        task("speculative", "ouroboros", "drafter=rank:2,target=rank:1"),
        task("speculative", "lookahead", "target=rank:1"),
        task("pearl", "model", "drafter=rank:0,target=rank:1"),
        task("dsi", "model", "drafter=rank:0,target=rank:1,target=rank:2"),
        Task {
            also_prompt_lookup: true,
            ..task("dsi", "model", "drafter=rank:3,target=rank:0,target=rank:1,target=rank:2")
        },
        // Ranks that compute the target together; any of them may decode.
        task("autoregressive", "none", "target=rank:1+rank:2"),
        task("autoregressive", "none", "target=rank:1+rank:0"),
        task("pearl", "model", "drafter=rank:0,target=rank:1+rank:2"),
        task("speculative", "model", "drafter=rank:4,target=rank:0+rank:1+rank:2+rank:3"),
        task("speculative", "lookahead", "target=rank:3+rank:1+rank:2+rank:0"),
        task("dsi", "model", "drafter=rank:0,target=rank:1+rank:2,target=rank:3"),
        trained("eagle", "drafter=rank:0,target=rank:1+rank:2"),
        // Ranks that compute the drafter together.
        task("speculative", "model", "drafter=rank:0+rank:1,target=rank:2+rank:3"),
        task("speculative", "ouroboros", "drafter=rank:2+rank:0+rank:1,target=rank:3"),
        task("speculative", "easyspec", "drafter=rank:1+rank:0,target=rank:2"),
        task("pearl", "model", "drafter=rank:0+rank:1,target=rank:2+rank:3"),
        task("pearl", "model", "drafter=rank:2+rank:1,target=rank:0"),
        task("dsi", "model", "drafter=rank:0+rank:4,target=rank:1+rank:2,target=rank:3"),
        Task {
            drafter: models.pard(),
            ..task("speculative", "parallel", "drafter=rank:1+rank:0,target=rank:2")
        },
        // Rank 0 follows, and has a drafter that needs no model.
        Task {
            also_prompt_lookup: true,
            ..task("dsi", "model", "drafter=rank:1+rank:0,target=rank:2,target=rank:3")
        },
        task("pearl", "prompt-lookup", "target=rank:1+rank:0"),
        // Drafters that read the target's features and share its weights.
        trained("eagle", "drafter=rank:0,target=rank:1"),
        trained("medusa", "drafter=rank:1,target=rank:0"),
        // Two replicas and the drafter on two ranks.
        task("dsi", "model", "drafter=rank:1,target=rank:1,target=rank:0,shared"),
    ]
}

/// Models whose layers are on two or three ranks. The last one of a model leads its ranks; any rank
/// may decode.
fn stage_tasks(models: &Models) -> Vec<Task> {
    let task = |method, kind, placement| Task::new(models, method, kind, placement);
    let trained = |method, kind: &'static str, placement| {
        let demonstration = |name| format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR"));
        let (target, drafter) = (demonstration("target"), demonstration(kind));
        Task { target, drafter, ..task(method, kind, placement) }
    };
    let speculators = speculators(models);
    let of_features = |kind, layout: SpeculatorLayout| {
        let is_wanted = |(_, path): &&(_, String)| path.ends_with(&format!("/{layout:?}"));
        let (_, drafter) = speculators.iter().find(is_wanted).unwrap();
        let placements = [
            ("speculative", "drafter=rank:0,target=rank:1/rank:2"),
            ("pearl", "drafter=rank:3,target=rank:1/rank:2/rank:0"),
        ];
        placements.map(|(method, placement)| Task {
            drafter: drafter.clone(),
            ..task(method, kind, placement)
        })
    };
    let mut tasks = vec![
        task("autoregressive", "none", "target=rank:0/rank:1"),
        task("autoregressive", "none", "target=rank:1/rank:2/rank:0"),
        task("speculative", "model", "drafter=rank:0,target=rank:1/rank:2"),
        task("speculative", "lookahead", "target=rank:2/rank:0/rank:1"),
        task("pearl", "model", "drafter=rank:0,target=rank:1/rank:2"),
        task("pearl", "model", "drafter=rank:0,target=rank:3/rank:1/rank:2"),
        task("dsi", "model", "drafter=rank:0,target=rank:1/rank:2,target=rank:3"),
        task("dsi", "model", "drafter=rank:4,target=rank:0/rank:1,target=rank:2/rank:3"),
        task("ssd", "model", "drafter=rank:0,target=rank:1/rank:2"),
        // Drafters that read the last hidden states, and share weights of both stages.
        trained("speculative", "eagle", "drafter=rank:0,target=rank:1/rank:2"),
        trained("speculative", "medusa", "drafter=rank:2,target=rank:1/rank:0"),
        // Drafters whose layers are on ranks, too (PEARL, appendix G).
        task("speculative", "model", "drafter=rank:3/rank:0,target=rank:1/rank:2"),
        task("pearl", "model", "drafter=rank:0/rank:1,target=rank:3/rank:2"),
        task("pearl", "model", "drafter=rank:0/rank:1,target=rank:2+rank:3"),
        task("speculative", "ouroboros", "drafter=rank:1/rank:0,target=rank:2"),
        Task {
            drafter: models.pard(),
            ..task("speculative", "parallel", "drafter=rank:1/rank:0,target=rank:2")
        },
        task("pearl", "prompt-lookup", "target=rank:0/rank:1"),
    ];
    // Drafters that read hidden states of several layers, on several stages.
    tasks.extend(of_features("eagle", SpeculatorLayout::Eagle3));
    tasks.extend(of_features("dflash", SpeculatorLayout::DFlash));
    tasks
}

/// Drafters for the target of these models, in every layout: their kinds and paths.
fn speculators(models: &Models) -> Vec<(&'static str, String)> {
    use SpeculatorLayout as L;
    let kinds = [
        (L::Medusa, "medusa"),
        (L::VllmMedusa, "medusa"),
        (L::SharedHeadMedusa, "medusa"),
        (L::ReducedMedusa, "medusa"),
        (L::Hydra, "hydra"),
        (L::HydraPlusPlus, "hydra"),
        (L::ReducedHydra, "hydra"),
        (L::Eagle, "eagle"),
        (L::SharedEmbeddingEagle, "eagle"),
        (L::ReducedEagle, "eagle"),
        (L::Eagle3, "eagle"),
        (L::PEagle, "parallel"),
        (L::DFlash, "dflash"),
        (L::JetSpec, "dflash"),
        (L::DFlash2, "dflash2"),
        (L::DSpark(MarkovKind::Vanilla), "dspark"),
        (L::DSpark(MarkovKind::Gated), "dspark"),
        (L::DSpark(MarkovKind::Recurrent), "dspark"),
        (L::Pard2, "parallel"),
        (L::ParallelMedusa, "parallel"),
        (L::ReducedParallelMedusa, "parallel"),
        (L::ParallelEagle, "parallel"),
        (L::ReducedParallelEagle, "parallel"),
    ];
    let target = Checkpoint::open(&models.path("target")).unwrap();
    let hash = target.embedding_sha256().unwrap();
    let speculators = kinds.map(|(layout, kind)| {
        let (path, target) = (models.path(&format!("{layout:?}")), target.config());
        let target_embedding_sha256 = Some(hash.clone());
        RandomSpeculator { layout, target, seed: 5, positions: 3, target_embedding_sha256 }
            .write(&path)
            .unwrap();
        (kind, path.display().to_string())
    });
    speculators.to_vec()
}

/// Every drafter with every method that it supports.
fn drafter_tasks(models: &Models) -> Vec<Task> {
    let task = |method, kind, placement| Task::new(models, method, kind, placement);
    let mut tasks = Vec::new();
    for (number, (kind, drafter)) in speculators(models).into_iter().enumerate() {
        let placement =
            ["drafter=rank:1,target=rank:0", "drafter=rank:0,target=rank:2+rank:1"][number % 2];
        let reads_one_state = ["medusa", "hydra"].contains(&kind);
        for method in if reads_one_state { &["speculative"][..] } else { &["speculative", "pearl"] }
        {
            tasks.push(Task { drafter: drafter.clone(), ..task(method, kind, placement) });
        }
    }
    for kind in ["prompt-lookup", "suffix"] {
        for method in ["speculative", "pearl", "ssd"] {
            tasks.push(task(method, kind, "target=rank:1"));
        }
        tasks.push(task("dsi", kind, "target=rank:1,target=rank:0"));
    }
    for (method, kind) in [
        ("ssd", "model"),
        ("auto", "model"),
        ("speculative", "easyspec"),
        ("pearl", "easyspec"),
        ("dsi", "easyspec"),
    ] {
        tasks.push(task(method, kind, "drafter=rank:0,target=rank:1"));
    }
    tasks
}

#[test]
fn answers_over_ranks_are_those_of_one_process() {
    let models = Models::make();
    check_answers(tasks(&models));
}

#[test]
fn answers_over_pipeline_stages_are_those_of_one_process() {
    let config = Config { num_hidden_layers: 4, ..example_config() };
    check_answers(stage_tasks(&Models::of(&config)));
}

#[test]
fn every_drafter_answers_over_ranks_as_in_one_process() {
    let models = Models::make();
    let tasks = drafter_tasks(&models).into_iter().enumerate();
    let step = if is_complete() { 1 } else { 3 };
    check_answers(tasks.filter(|(number, _)| number % step == 0).map(|(_, task)| task).collect());
}

/// Compares answers over ranks with those of one process.
fn check_answers(tasks: Vec<Task>) {
    let everything = is_complete();
    for (number, task) in tasks.into_iter().enumerate() {
        let expected = expected(&task);
        for (at, transport) in TRANSPORTS.into_iter().enumerate() {
            if !everything && number % 2 != at {
                continue;
            }
            let ended = task.run(transport);
            let name = format!("{} {} {} {transport}", task.method, task.kind, task.placement);
            assert!(ended.succeeded, "{name}: {} {}", ended.output, ended.errors);
            let found = ended.answers();
            // What rejection sampling draws may depend on how many tokens are drafted at a time,
            // which in parallel methods follows from timing.
            let comparable =
                if task.method == "autoregressive" || task.method == "speculative" { 3 } else { 2 };
            assert_eq!(found.len(), 3, "{name}");
            assert_eq!(found[..comparable], expected[..comparable], "{name}");
        }
    }
}

/// Families with experts, latent attention, recurrent layers and norms over all heads, on two and
/// four ranks that compute each layer together, and on two ranks with some layers each.
#[test]
fn families_on_ranks_that_compute_together_answer_as_in_one_process() {
    let kinds: [fn(&Config) -> bool; 4] = [
        |config| config.experts.is_some() && config.recurrent.is_none() && config.latent.is_none(),
        |config| config.latent.is_some(),
        |config| config.recurrent.is_some(),
        |config| config.qk_norms == QkNorms::Whole,
    ];
    let placements = [
        "target=rank:0+rank:1",
        "target=rank:1+rank:0+rank:3+rank:2",
        "target=rank:0/rank:1",
        "target=rank:1/rank:0",
    ];
    for (at, kind) in kinds.into_iter().enumerate() {
        let config = example_families().into_iter().find(kind).unwrap();
        let models = Models::of(&config);
        for (transport, placement) in
            [at, at + 1, at, at + 1].map(|at| TRANSPORTS[at % 2]).iter().zip(placements)
        {
            let task = Task::new(&models, "autoregressive", "none", placement);
            let ended = task.run(transport);
            assert!(ended.succeeded, "{placement} {}: {}", ended.output, ended.errors);
            let found = ended.answers();
            assert_eq!(found, expected(&task), "{placement}, {config:?}");
        }
    }
}
