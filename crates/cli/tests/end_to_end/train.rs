//! `forerun train` and `forerun distill`: training a target on a text, letting it write text, and
//! training drafters for it.

use crate::common::{Finished, Run};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const WORDS: [&str; 9] =
    ["the ", "fox ", "ran ", "over ", "a ", "hill, ", "and ", "the dog ", "slept.\n"];

/// Writes a text that is repetitive enough for a few seconds of training.
fn text(folder: &Path) -> PathBuf {
    let file = folder.join("text.txt");
    let book = |seed: usize| (0..3000).map(|n| WORDS[(n * n + seed * n) % 9]).collect::<String>();
    fs::write(&file, (1..6).map(book).collect::<Vec<_>>().join("\u{c}")).unwrap();
    file
}

fn train(folder: &Path, data: &Path, out: &str) -> Run {
    let run = Run::of("train lm").with_path("--data", data);
    run.with_path("--out", &folder.join(out)).words("--held-out=0.3 --hidden=32 --learning-rate=0.005 --warmup=5 --evaluation-tokens=256 --threads=1")
}

fn sized(folder: &Path, data: &Path, out: &str, context: &str) -> Run {
    train(folder, data, out).with(&["--vocab-size=300", context])
}

fn target(folder: &Path, data: &Path) -> Run {
    sized(folder, data, "target", "--context=64").words("--layers=2 --steps=80")
}

fn generate(folder: &Path, options: &[&str]) -> Finished {
    let run = Run::of("generate").with_path("--model", &folder.join("target"));
    run.with(&["-p", "the fox ran", "--max-tokens", "40"]).with(options).succeed()
}

#[test]
fn a_target_and_a_distilled_drafter_are_trained_from_text() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = text(folder);
    let finished = target(folder, &data).succeed();
    assert!(finished.errors.contains("bits/byte"), "{}", finished.errors);
    assert!(folder.join("target.training").join("loss.svg").exists());
    let plain = generate(folder, &["--method", "autoregressive"]).output();
    assert!(WORDS.iter().any(|word| plain.contains(word.trim_end())), "{plain}");

    // The target's own text is the same after an interruption.
    let distill = |out: &str, chars: &str| {
        let run = Run::of("distill").with_path("--prompts", &data);
        run.with_path("--model", &folder.join("target"))
            .with_path("--out", &folder.join(out))
            .with(&["--count=40", chars, "--max-tokens=50", "--temperature=1", "--seed=3"])
    };
    distill("whole.jsonl", "--prompt-chars=10").succeed();
    let whole = fs::read_to_string(folder.join("whole.jsonl")).unwrap();
    assert_eq!(whole.lines().count(), 40);
    let cut = &whole[..whole.len() / 2];
    fs::write(folder.join("cut.jsonl"), cut).unwrap();
    distill("cut.jsonl", "--prompt-chars=10").succeed();
    assert_eq!(fs::read_to_string(folder.join("cut.jsonl")).unwrap(), whole);
    distill("cut.jsonl", "--prompt-chars=30")
        .finish()
        .assert_refused("other prompts", &["contains texts of other prompts"]);

    // As answers to chat messages, one at a time and several.
    let messages = folder.join("messages.txt");
    fs::write(&messages, "the fox\n\nover a hill\nthe dog slept\n").unwrap();
    let answered = |out: &str, parallel: &str| {
        let run =
            Run::forerun().with(&["distill", "--chat", "--max-tokens=9", "--count=3", parallel]);
        let run = run.with_path("--prompts", &messages).with_path("--out", &folder.join(out));
        run.with_path("--model", &folder.join("target")).succeed();
        fs::read_to_string(folder.join(out)).unwrap()
    };
    let one = answered("one.jsonl", "--parallel=1");
    assert!(
        one.starts_with("{\"prompt\":\"the fox\",\"text\":") && one.contains("\"complete\":"),
        "{one}"
    );
    assert_eq!(answered("three.jsonl", "--parallel=3"), one);

    // A drafter is trained on it.
    let drafter = train(folder, &folder.join("whole.jsonl"), "drafter").words("--layers=1");
    let drafter =
        drafter.words("--steps=60 --context=64").with_path("--teacher", &folder.join("target"));
    drafter.succeed();
    let drafter = folder.join("drafter");
    let options = ["--draft-tokens=3", "--placement", &Run::one_core_placement(), "--draft-model"];
    let options = [&options[..], &[drafter.to_str().unwrap()]].concat();
    assert_eq!(generate(folder, &options).output(), plain);
}

/// Creates a run with the least that it needs: one short file of one document.
fn train_on_one_document(folder: &Path, text: &str) -> Run {
    let data = folder.join("one.txt");
    fs::write(&data, text).unwrap();
    let run = Run::of("train lm").with_path("--data", &data);
    let run = run.with_path("--out", &folder.join("model")).words("--threads=1");
    run.words("--hidden=32 --layers=1")
}

#[test]
fn one_document_is_enough_and_the_number_of_steps_follows_from_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text: String = (0..4000).map(|n: usize| WORDS[n * n % 9]).collect();
    let run = || train_on_one_document(folder, &text).words("--context=64 --vocab-size=300");
    let finished = run().succeed();
    let lines: Vec<&str> = finished.errors.lines().take(2).collect();
    assert!(lines[0].contains(" training tokens, "), "{lines:?}");
    assert!(!lines[0].contains(", 0 held-out tokens"), "{lines:?}");
    let (steps, rest) = lines[1].split_once(" steps of 512 tokens, ").unwrap();
    let passes: f64 = rest.split(' ').next().unwrap().parse().unwrap();
    assert!((9.0..=10.5).contains(&passes) && rest.contains("--epochs"), "{lines:?}");
    let evaluated = format!("step {steps}: held-out loss");
    assert!(finished.errors.contains(&evaluated), "{}", finished.errors);
    let given = run().words("--epochs=2 --restart").succeed();
    assert!(given.errors.contains(", 2."), "{}", given.errors);
}

/// A first attempt that fails leaves nothing that hinders the next one.
#[test]
fn the_errors_about_short_text_name_the_options_that_help() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text: String = (0..400).map(|n: usize| WORDS[n * n % 9]).collect();
    let run = |options: &[&str]| train_on_one_document(folder, &text).with(options);
    let finished = run(&["--context=4096"]).finish();
    finished.assert_refused("context", &["training tokens", "too few", "--context"]);
    let finished = run(&["--context=32", "--held-out=0"]).finish();
    let cures = ["--held-out", "--validation", "--evaluation-tokens 0"];
    finished.assert_refused("held-out", &[&["held-out tokens"], &cures[..]].concat());
    let short = ["--context=32", "--steps=2", "--vocab-size=260"];
    let run = |options: &[&str]| run(&short).with(options);
    run(&["--held-out=0", "--evaluation-tokens=0"]).succeed();
    let config = fs::read_to_string(folder.join("model").join("config.json")).unwrap();
    assert!(config.contains("\"vocab_size\": 260"), "{config}");
    // With a checkpoint, the text stays as it is, unless the run starts over.
    let finished = run(&["--held-out=0.2", "--evaluation-tokens=0"]).finish();
    finished.assert_refused("held-out", &["held-out share", "--restart"]);
    run(&["--held-out=0.2", "--restart"]).succeed();
}

/// Trains a drafter of one of the four kinds for the target in the directory.
fn train_drafter(folder: &Path, data: &Path, kind: &[&str], out: &str) -> Run {
    Run::of("train")
        .with(kind)
        .with_path("--target", &folder.join("target"))
        .with_path("--data", data)
        .with_path("--out", &folder.join(out))
        .words("--held-out=0.3 --steps=12 --warmup=2 --threads=1")
        .words("--sequences=2 --accumulation=2 --context=64 --evaluation-tokens=256")
}

/// The target is a GGUF file, the text contains special tokens, and the drafter has a reduced
/// vocabulary.
#[test]
fn a_reduced_drafter_is_trained_for_a_target_in_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = text(folder);
    target(folder, &data).succeed();
    let (file, out) = (folder.join("target.gguf"), folder.join("eagle"));
    let export = Run::of("export --type f32").with_path("--gguf", &file);
    export.with_path("--model", &folder.join("target")).succeed();
    let marked = folder.join("marked.txt");
    fs::write(&marked, fs::read_to_string(&data).unwrap().replace("slept.", "<|endoftext|>"))
        .unwrap();
    let train = |kind: &[&str]| {
        let run = Run::of("train").with(kind).with_path("--data", &marked);
        run.with_path("--target", &file).with_path("--out", &out).words("--special-tokens --steps=3 --context=32 --sequences=2 --accumulation=1 --evaluation-tokens=64 --held-out=0.3 --threads=1")
    };
    let generate = |options: &[&str]| {
        let run = Run::forerun().with(&["generate", "--json", "-p", "the fox ran", "-n", "30"]);
        run.with_path("--model", &file).with(options).succeed().json()["tokens"].clone()
    };
    let plain = generate(&["--method", "autoregressive"]);
    for kind in [
        &["medusa", "--heads=2"][..],
        &["hydra", "--heads=2"],
        &["eagle"],
        &["parallel", "--integration=medusa", "--masks=3"],
        &["dflash", "--masks=3", "--layers=1"],
        &["dspark", "--block-size=3", "--layers=1", "--markov-rank=5"],
    ] {
        train(&[kind, &["--draft-vocab=40", "--restart"]].concat()).succeed();
        // The head has the rows of 40 tokens.
        let weights = fs::read(out.join("model.safetensors")).unwrap();
        let header = String::from_utf8_lossy(&weights[8..]);
        assert!(header.contains("\"d2t\":{\"dtype\":\"I64\",\"shape\":[40]"), "{kind:?}");
        let drafted = generate(&["--draft-tokens=3", "--draft-model", out.to_str().unwrap()]);
        assert_eq!(drafted, plain, "{kind:?}");
    }

    let refused =
        |kind: &[&str], words: &[&str]| train(kind).finish().assert_refused(words[0], words);
    refused(&["eagle", "--draft-vocab=300", "--restart"], &["--draft-vocab", "300", "less than"]);
    let parallel = &["parallel", "--integration=medusa", "--classification-weight=0.1"];
    refused(parallel, &["--classification-weight", "eagle"]);
}

#[test]
fn all_kinds_of_drafters_are_trained_for_a_target() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = text(folder);
    target(folder, &data).succeed();
    let kinds: [(&str, &[&str]); 7] = [
        ("medusa", &["medusa", "--heads=2"]),
        ("hydra", &["hydra", "--heads=2"]),
        ("eagle", &["eagle"]),
        ("parallelspec-medusa", &["parallel", "--integration=medusa", "--masks=3"]),
        (
            "parallelspec-eagle",
            &["parallel", "--integration=eagle", "--group-share=0.5", "--masks=1"],
        ),
        ("dflash", &["dflash", "--masks=2", "--group-share=0.5", "--layers=1"]),
        ("dspark", &["dspark", "--block-size=3", "--group-share=0.5", "--markov-rank=8"]),
    ];
    for (name, kind) in kinds {
        let finished = train_drafter(folder, &data, kind, name).succeed();
        assert!(finished.errors.contains("accepted by position"), "{}", finished.errors);
        let config = fs::read_to_string(folder.join(name).join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["speculator"], name);
        assert_eq!(config["target"], "target");
        assert!(folder.join(format!("{name}.training")).join("acceptance.svg").exists());
    }
    let plain = generate(folder, &["--method", "autoregressive"]).output();
    for name in ["hydra", "dflash", "dspark"] {
        let (drafter, option) = (folder.join(name), format!("--drafter={name}"));
        let options = [&option, "--draft-tokens=2", "--draft-model", drafter.to_str().unwrap()];
        assert_eq!(generate(folder, &options).output(), plain, "{name}");
    }

    // Training on the target's own text.
    let line = |number: usize| {
        (0..20).map(|word| WORDS[(word * (number % 7 + 1) + number) % 8]).collect::<String>()
    };
    let prompts = folder.join("prompts.txt");
    fs::write(&prompts, (0..56).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    let finished = train_drafter(folder, &prompts, &["medusa"], "own")
        .words("--self-distillation=40 --self-distillation-temperature=1")
        .succeed();
    assert!(finished.errors.contains("wrote 40 texts to"), "{}", finished.errors);
    // The file's name has the number of texts and the temperature.
    let exists = fs::read_dir(folder.join("own.training")).unwrap().any(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.starts_with("self-distilled-") && name.contains("-40-1-") && name.ends_with(".jsonl")
    });
    assert!(exists);

    let refused = |run: Run, words: &[&str]| run.finish().assert_refused(words[0], words);
    let parallel = &["parallel", "--integration=medusa", "--classification-weight=1"];
    refused(train_drafter(folder, &data, parallel, "a"), &["--classification-weight", "eagle"]);
    let parallel = &["parallel", "--integration=eagle", "--masks=9"];
    refused(train_drafter(folder, &data, parallel, "a"), &["--masks", "9"]);
    for (option, words) in [
        ("--target-layers=3", &["--target-layers", "1 to 2"][..]),
        ("--layers=0", &["--layers", "0"]),
    ] {
        refused(train_drafter(folder, &data, &["dflash", option], "a"), words);
    }
    for (option, words) in [
        ("--block-size=1", &["--block-size", "1"][..]),
        ("--markov-rank=0", &["--markov-rank", "0"]),
        ("--target-layers=2", &["--target-layers", "last layer"]),
    ] {
        refused(train_drafter(folder, &data, &["dspark", option], "a"), words);
    }
    let short = folder.join("short.txt");
    fs::write(&short, "the fox ran").unwrap();
    let evaluated = Run::of("train dflash --masks=20 --steps=1 --context=64 --threads=1")
        .with_path("--target", &folder.join("target"))
        .with_path("--data", &data)
        .with_path("--out", &folder.join("b"));
    let words = ["held-out tokens", "at least 20", "--evaluation-tokens 0"];
    refused(evaluated.with_path("--validation", &short), &words);
    let growing = train_drafter(folder, &data, &["eagle"], "a").words("--decay=2");
    refused(growing, &["decay", "2"]);
}

#[test]
fn an_interrupted_run_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = text(folder);
    let interrupted = loop {
        let mut running = target(folder, &data).start();
        running.wait_for_interrupt_handler();
        thread::sleep(Duration::from_millis(30));
        running.interrupt();
        let finished = running.finish();
        match finished.code {
            Some(130) => break finished,
            code => assert_eq!(code, Some(0), "{}", finished.errors),
        }
        // The run ended before the interrupt, so it is repeated.
        for written in ["target.training", "target"] {
            fs::remove_dir_all(folder.join(written)).unwrap();
        }
    };
    assert!(interrupted.errors.contains("to resume"), "{}", interrupted.errors);
    assert!(!folder.join("target").exists());
    target(folder, &data).succeed();
    let resumed = fs::read(folder.join("target").join("model.safetensors")).unwrap();
    let other = tempfile::tempdir().unwrap();
    target(other.path(), &text(other.path())).succeed();
    let whole = fs::read(other.path().join("target").join("model.safetensors")).unwrap();
    assert!(resumed == whole, "one thread, the same weights");
}

/// A second run in one folder is refused, SIGTERM saves as Ctrl-C does, and a run with other
/// options is only resumed from the beginning.
#[test]
fn a_run_is_not_shared_and_not_resumed_with_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = text(folder);
    let long = || sized(folder, &data, "target", "--context=64").words("--steps=100000");
    let with_layers = |layers: &str| long().with(&[layers]);
    let mut running = with_layers("--layers=2").start();
    running.wait_for_interrupt_handler();
    let owner = fs::read_to_string(folder.join("target.training").join(".lock")).unwrap();
    let second = with_layers("--layers=2").finish();
    second.assert_refused("target.training", &[&format!("process {} is working", owner.trim())]);
    running.signal(rustix::process::Signal::TERM);
    let finished = running.finish();
    assert_eq!(finished.code, Some(143), "{}", finished.errors);
    assert!(finished.errors.contains("to resume"), "{}", finished.errors);
    for (other, difference) in [
        ("--layers=3", "layers was 2, is now 3"),
        ("--hidden=64", "hidden was 32, is now 64"),
        ("--heads=2", "heads was 1, is now 2"),
        ("--kv-heads=3", "kv_heads was 1, is now 3"),
        ("--intermediate=64", "intermediate was 96, is now 64"),
        ("--seed=5", "seed was 0, is now 5"),
    ] {
        let mut run = Run::of("train lm --held-out=0.3 --warmup=5");
        run = run.words("--learning-rate=0.005 --evaluation-tokens=256 --threads=1");
        run = run.words("--vocab-size=300 --context=64 --steps=100000");
        let given = ["--layers=2", "--hidden=32"];
        let name = other.split('=').next().unwrap();
        let kept: Vec<&str> = given.into_iter().filter(|given| !given.starts_with(name)).collect();
        run = run.with(&kept).with(&[other]).with_path("--data", &data);
        let finished = run.with_path("--out", &folder.join("target")).finish();
        finished.assert_refused(difference, &[difference, "--restart"]);
    }
    let mut restarted = with_layers("--layers=3").words("--restart").start();
    restarted.wait_for_interrupt_handler();
    restarted.interrupt();
    let finished = restarted.finish();
    assert_eq!(finished.code, Some(130), "{}", finished.errors);
}

#[test]
fn invalid_trainings_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = text(folder);
    let missing = folder.join("missing.txt");
    let refused = |run: Run, words: &[&str]| run.finish().assert_refused(words[0], words);
    refused(train(folder, &missing, "a"), &["missing.txt"]);
    refused(sized(folder, &data, "b", "--context=900000"), &["900000", "tokens"]);
    refused(target(folder, &data).with_path("--teacher", &folder.join("nobody")), &["nobody"]);
    refused(target(folder, &data).words("--heads=5"), &["num_attention_heads", "5"]);
    refused(target(folder, &data).words("--sequences=0"), &["sequences"]);
}
