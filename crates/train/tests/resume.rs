//! A run that was killed at any moment can be resumed, and ends with the same weights as an
//! uninterrupted run.

#![cfg(unix)]
use forerun_core::testing::cases;
use forerun_formats::Config;
use forerun_formats::checkpoint::random::example_config;
use forerun_train::data::{Dataset, PrepareOptions};
use forerun_train::drafter::{DrafterOptions, Target, TrainedDrafterKind};
use forerun_train::metrics::{Record, read_metrics};
use forerun_train::tokenizer::{TokenizerOptions, train_tokenizer};
use forerun_train::{
    DrafterRun, Dtype, LearningRateSchedule, Llama, OptimizerOptions, TrainError, TrainOptions,
    Trainer, export,
};
use serde_json::json;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable with the run's folder for a child process; see [`child`].
const FOLDER: &str = "FORERUN_TEST_RUN";
/// Prefix of the names of drafters' runs.
const DRAFTER: &str = "drafter-";
/// The same for runs of a block drafter.
const BLOCK_DRAFTER: &str = "drafter-block-";
/// The same for runs of a block drafter with heads.
const HEADS_DRAFTER: &str = "drafter-heads-";
const STEPS: u64 = 60;
/// The number of kills, if `FORERUN_CASES` does not set it (`just training`).
const KILLS: u32 = 4;

fn options() -> TrainOptions {
    TrainOptions {
        context: 48,
        same_windows: false,
        sequences: 3,
        accumulation: 2,
        schedule: LearningRateSchedule {
            peak: 3e-3,
            final_share: 0.1,
            warmup_steps: 5,
            steps: STEPS,
        },
        optimizer: OptimizerOptions::default(),
        seed: 7,
        evaluate_every: 4,
        evaluation_tokens: 200,
        save_every: 2,
        distillation_share: 0.0,
    }
}

/// Writes a text, trains a tokenizer, and prepares a data set.
fn prepare(folder: &Path) -> Dataset {
    let text = folder.join("text.txt");
    let words = ["the ", "fox ", "ran ", "over ", "a ", "hill, ", "and ", "the dog ", "slept.\n"];
    let text_of =
        |seed: usize| (0..2500).map(|n| words[(n * n + seed * n) % 9]).collect::<String>();
    std::fs::write(&text, format!("{}\u{c}{}", text_of(3), text_of(5))).unwrap();
    let held_out = folder.join("held-out.txt");
    std::fs::write(&held_out, text_of(4)).unwrap();
    let tokenizer = folder.join("tokenizer").join("tokenizer.json");
    if !tokenizer.exists() {
        let options = TokenizerOptions { vocab_size: 300, ..TokenizerOptions::default() };
        let trained = train_tokenizer(std::slice::from_ref(&text), &options, &mut |_| ()).unwrap();
        trained.save(&folder.join("tokenizer")).unwrap();
    }
    let options = PrepareOptions { validation_files: vec![held_out], ..PrepareOptions::default() };
    Dataset::prepare(&[text], &tokenizer, &folder.join("shards"), &options, &mut |_| ()).unwrap()
}

fn config(dataset: &Dataset) -> Config {
    Config {
        vocab_size: dataset.vocab_size(),
        max_position_embeddings: 48,
        tie_word_embeddings: true,
        ..example_config()
    }
}

/// Trains a parallel drafter, which draws random anchors and noise, or a block drafter, in
/// `folder/NAME` until the end, then writes `folder/NAME.model`.
fn train_drafter(folder: &Path, name: &str, masks: usize) -> Result<(), TrainError> {
    let dataset = Dataset::open(&folder.join("shards")).unwrap();
    let tokenizer = folder.join("tokenizer").join("tokenizer.json");
    let path = folder.join("target");
    if !path.exists() {
        let target = Llama::random(&config(&dataset), 1).unwrap();
        export(&target, &tokenizer, &path, Dtype::Bf16).unwrap();
    }
    let mut target = Target::open(&path).unwrap();
    let mut kind = TrainedDrafterKind::ParallelspecEagle;
    if name.starts_with(BLOCK_DRAFTER) {
        kind = TrainedDrafterKind::Dflash;
        target = target.with_feature_layers(&[1, 2]).unwrap();
    }
    if name.starts_with(HEADS_DRAFTER) {
        kind = TrainedDrafterKind::Dspark;
        target = target.with_feature_layers(&[1]).unwrap();
    }
    let drafter = DrafterOptions { group_share: 0.4, ..DrafterOptions::of(kind, masks) };
    let run = DrafterRun {
        folder: &folder.join(name),
        dataset: &dataset,
        tokenizer: &tokenizer,
        target: &target,
        init: None,
    };
    let mut trainer = Trainer::open_drafter(&run, options(), drafter)?;
    assert!(trainer.run(&mut |_| ControlFlow::Continue(()))?);
    let out = folder.join(format!("{name}.model"));
    trainer.learner().drafter().export(&target, &out, Dtype::F32).unwrap();
    Ok(())
}

/// Trains a language model in `folder/NAME` until the end, then writes `folder/NAME.model`.
fn train(folder: &Path, name: &str, options: TrainOptions) -> Result<(), TrainError> {
    train_layers(folder, name, options, 2).map(drop)
}

/// Trains as [`train`] does, and says that the model was made with this number of layers. Returns
/// the number of damaged checkpoints.
fn train_layers(
    folder: &Path,
    name: &str,
    options: TrainOptions,
    layers: usize,
) -> Result<usize, TrainError> {
    let dataset = Dataset::open(&folder.join("shards")).unwrap();
    let tokenizer = folder.join("tokenizer").join("tokenizer.json");
    let create = || Llama::random(&config(&dataset), 1);
    let (run, origin) = (folder.join(name), json!({ "layers": layers }));
    let mut trainer = Trainer::open(&run, &dataset, &tokenizer, None, options, &origin, create)?;
    assert!(trainer.run(&mut |_| ControlFlow::Continue(()))?);
    let out = folder.join(format!("{name}.model"));
    export(trainer.model(), &tokenizer, &out, Dtype::F32).unwrap();
    Ok(trainer.damaged().len())
}

/// Not a test: the work of the child processes that the tests below start.
#[test]
fn child() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let run = PathBuf::from(folder);
        let name = run.file_name().unwrap().to_str().unwrap();
        let folder = run.parent().unwrap();
        if name.starts_with(DRAFTER) {
            let has_blocks = [BLOCK_DRAFTER, HEADS_DRAFTER].iter().any(|of| name.starts_with(of));
            let masks = if has_blocks { 3 } else { 2 };
            train_drafter(folder, name, masks).unwrap();
        } else {
            train(folder, name, options()).unwrap();
        }
    }
}

fn spawn(folder: &Path, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "resume::child", "--nocapture"])
        .env(FOLDER, folder.join(name))
        // With one thread, the order of sums is fixed.
        .env("RAYON_NUM_THREADS", "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn weights(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(format!("{name}.model")).join("model.safetensors")).unwrap()
}

/// The records of the log, without times.
fn records(folder: &Path, name: &str) -> Vec<(u64, u64, u64)> {
    let numbers = |record: Record| match record {
        Record::Training(record) => (record.step, record.tokens, record.loss.to_bits()),
        Record::Evaluation(record) => (record.step, 0, record.bits_per_byte.to_bits()),
        Record::Acceptance(record) => (record.step, 0, record.acceptance[2].overlap.to_bits()),
    };
    read_metrics(&folder.join(name).join("log.jsonl")).unwrap().into_iter().map(numbers).collect()
}

fn is_writing_a_checkpoint(run: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(".partial"))
}

#[test]
fn a_killed_language_model_run_ends_with_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    kill_and_resume(folder.path(), "");
}

#[test]
fn a_killed_drafter_run_ends_with_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    kill_and_resume(folder.path(), DRAFTER);
    assert!(folder.path().join("drafter-reference").join("acceptance.svg").exists());
}

#[test]
fn a_killed_block_drafter_run_ends_with_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    kill_and_resume(folder.path(), BLOCK_DRAFTER);
}

#[test]
fn a_killed_run_of_a_block_drafter_with_heads_ends_with_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    kill_and_resume(folder.path(), HEADS_DRAFTER);
}

/// Kills and resumes runs until enough of them were killed, and compares each with an uninterrupted
/// run. The names of the runs start with `prefix`.
fn kill_and_resume(folder: &Path, prefix: &str) {
    prepare(folder);
    let reference = &format!("{prefix}reference");
    let start = Instant::now();
    assert!(spawn(folder, reference).wait().unwrap().success());
    let reference_ms = start.elapsed().as_millis() as u64;
    let most_kills = cases(KILLS);
    let (mut kills, mut while_writing, mut state) = (0, 0, 0x9E37_79B9_7F4A_7C15_u64);
    for round in 0.. {
        let name = format!("{prefix}killed-{round}");
        // Kill and resume the run until it completes.
        loop {
            let mut child = spawn(folder, &name);
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let delay = Duration::from_millis((state >> 33) % reference_ms);
            // Every third time, kill it while it is writing a checkpoint.
            let start = Instant::now();
            let during_checkpoint = kills % 3 == 2;
            let killed = loop {
                if child.try_wait().unwrap().is_some() {
                    break false;
                }
                let is_due = start.elapsed() >= delay;
                if is_due && (!during_checkpoint || is_writing_a_checkpoint(&folder.join(&name))) {
                    child.kill().unwrap();
                    break true;
                }
                std::thread::sleep(Duration::from_micros(100));
            };
            let status = child.wait().unwrap();
            if status.signal() == Some(9) {
                kills += 1;
                while_writing += usize::from(is_writing_a_checkpoint(&folder.join(&name)));
                continue;
            }
            assert!(status.success() || killed, "a run failed: {status}");
            break;
        }
        assert!(weights(folder, reference) == weights(folder, &name), "other weights in {name}");
        assert_eq!(records(folder, reference), records(folder, &name));
        if kills >= most_kills && while_writing > 0 {
            break;
        }
    }
}

#[test]
fn a_run_is_not_resumed_with_other_options() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let short = LearningRateSchedule { steps: 2, ..options().schedule };
    train(folder, "run", TrainOptions { schedule: short, ..options() }).unwrap();
    let other = TrainOptions { schedule: short, seed: 8, ..options() };
    let error = train(folder, "run", other).unwrap_err().to_string();
    assert!(error.contains("seed was 7, is now 8"), "{error}");
    let same = TrainOptions { schedule: short, ..options() };
    let error = train_layers(folder, "run", same, 4).unwrap_err().to_string();
    assert!(error.contains("layers was 2, is now 4") && error.contains("`restart`"), "{error}");
    train_drafter(folder, "drafter", 2).unwrap();
    let error = train_drafter(folder, "drafter", 3).unwrap_err().to_string();
    assert!(error.contains("draft_tokens was 2, is now 3"), "{error}");
    let long = TrainOptions { schedule: short, context: 49, ..options() };
    let error = train(folder, "other", long).unwrap_err().to_string();
    assert!(error.contains("`context` is 49") && error.contains("1 to 48"), "{error}");
}

#[test]
fn a_damaged_newest_checkpoint_falls_back_to_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    let schedule = LearningRateSchedule { steps: 4, ..options().schedule };
    let options = || TrainOptions { schedule, ..options() };
    train(folder, "run", options()).unwrap();
    let whole = weights(folder, "run");
    let checkpoints = folder.join("run").join("checkpoints");
    for name in ["model.safetensors", "optimizer.safetensors", "training_state.json"] {
        let file = checkpoints.join("step-00000004").join(name);
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        // The run goes on after step 2, and writes the checkpoint of step 4 again.
        assert_eq!(train_layers(folder, "run", options(), 2).unwrap(), 1, "{name}");
        assert!(weights(folder, "run").len() == whole.len(), "{name}");
        let written = std::fs::read(&file).unwrap();
        match name.ends_with(".json") {
            // Its length varies with the digits of measured times.
            true => assert_eq!(keys(&written), keys(&bytes), "{name}"),
            false => assert_eq!(written.len(), bytes.len(), "{name}"),
        }
    }
    for step in ["step-00000002", "step-00000004"] {
        std::fs::write(checkpoints.join(step).join("model.safetensors"), "").unwrap();
    }
    let error = train(folder, "run", options()).unwrap_err().to_string();
    assert!(error.contains("step-00000004"), "{error}");
}

/// Returns the names of a JSON object's values.
fn keys(json: &[u8]) -> Vec<String> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json).unwrap();
    object.keys().cloned().collect()
}

/// The loss falls, with any number of threads.
#[test]
fn training_lowers_the_loss() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    prepare(folder);
    train(folder, "run", options()).unwrap();
    let log = read_metrics(&folder.join("run").join("log.jsonl")).unwrap();
    let losses: Vec<f64> = log
        .iter()
        .filter_map(|record| match record {
            Record::Training(record) => Some(record.loss),
            _ => None,
        })
        .collect();
    assert_eq!(losses.len(), STEPS as usize);
    assert!(losses[0] > 5.0 && losses[STEPS as usize - 1] < 2.5, "{losses:?}");
    let bits = log.iter().rev().find_map(|record| match record {
        Record::Evaluation(record) => Some(record.bits_per_byte),
        _ => None,
    });
    assert!(bits.unwrap() < 2.0, "{bits:?}");
    assert!(folder.join("run").join("loss.svg").exists());
}
