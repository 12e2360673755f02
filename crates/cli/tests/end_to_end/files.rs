//! Output files: what is written, when, and what is left when a process ends early.

use crate::common::{Models, Run};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Returns the names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn has_partial(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut names| {
        names.any(|name| {
            name.is_ok_and(|name| name.file_name().to_string_lossy().ends_with(".partial"))
        })
    })
}

#[test]
fn a_device_is_never_replaced() {
    let models = Models::pair();
    let export = || Run::of("export").with_path("--model", &models.target());
    for device in ["/dev/full", "/dev/null"] {
        let finished = export().with(&["--gguf", device]).finish();
        finished.assert_refused(device, &["it is a device", "choose another name"]);
        let generate = Run::generate(&models).on_one_core().words("-p Hello");
        let finished = generate.with(&["--trace", device]).finish();
        finished.assert_refused(device, &["it is a device", "choose another name"]);
        assert!(fs::metadata(device).unwrap().file_type().is_char_device());
    }
    let (file, link) = (models.folder().join("file.gguf"), models.folder().join("link.gguf"));
    fs::write(&file, "kept").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let finished = export().with_path("--gguf", &link).finish();
    finished.assert_refused("link.gguf", &["symbolic link", "file.gguf"]);
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}

#[test]
fn a_model_is_not_overwritten_by_its_export() {
    let models = Models::pair();
    let export = || Run::of("export").with_path("--model", &models.target());
    for name in ["model.safetensors", "config.json"] {
        let file = models.target().join(name);
        let before = fs::read(&file).unwrap();
        let finished = export().with_path("--gguf", &file).finish();
        finished.assert_refused(name, &["is a file of the model itself", "choose another name"]);
        assert_eq!(fs::read(&file).unwrap(), before);
        let generate = Run::generate(&models).words("-p Hello").with_path("--trace", &file);
        generate.finish().assert_refused(name, &["is a file of the model itself"]);
        assert_eq!(fs::read(&file).unwrap(), before);
    }
}

/// Beyond the limit of `ulimit -f`, the system sends a signal that ends a process by default.
#[cfg(target_os = "linux")]
#[test]
fn a_file_beyond_the_limit_of_the_process_is_an_error() {
    let models = Models::pair();
    let outputs = tempfile::tempdir().unwrap();
    let export = Run::of("export").with_path("--model", &models.target());
    let export = export.with_path("--gguf", &outputs.path().join("model.gguf"));
    export.with_file_limit().finish().assert_refused("ulimit -f", &["model.gguf", "too large"]);
    assert!(names(outputs.path()).is_empty());
}

#[test]
fn an_impossible_trace_is_refused_before_anything_is_generated() {
    let models = Models::pair();
    let trace = models.folder().join("no").join("such").join("trace.json");
    let generate = Run::generate(&models).on_one_core().words("-p Hello");
    let finished = generate.with_path("--trace", &trace).finish();
    finished.assert_refused("trace.json", &["the folder", "does not exist"]);
    assert_eq!(finished.output(), "");
}

/// Whether this process ignores a signal, and so do the processes that it starts.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    ignored >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn an_interrupted_answer_keeps_its_trace_and_a_killed_one_is_cleaned_up_later() {
    let models = Models::with_context(1 << 20);
    let outputs = tempfile::tempdir().unwrap();
    let trace = outputs.path().join("trace.json");
    let generate = || {
        let run = Run::generate(&models).on_one_core().words("-p Hello --ignore-eos");
        run.words("--max-tokens 1000000").with_path("--trace", &trace)
    };
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        if is_ignored(signal) {
            // As under `nohup`.
            eprintln!("skipped: {signal:?} is ignored here");
            continue;
        }
        let mut running = generate().start();
        running.wait_for_output();
        assert!(has_partial(outputs.path()));
        running.signal(signal);
        assert_eq!(running.finish().code, Some(code));
        assert_eq!(names(outputs.path()), ["trace.json"]);
        fs::remove_file(&trace).unwrap();
    }
    let mut running = generate().start();
    running.wait_for_output();
    running.kill();
    running.finish();
    assert!(has_partial(outputs.path()));
    let run = Run::generate(&models).on_one_core().words("-p Hello --max-tokens 4");
    run.with_path("--trace", &trace).succeed();
    assert_eq!(names(outputs.path()), ["trace.json"]);
}

#[test]
fn the_demonstration_pair_leaves_no_file_even_when_it_is_killed() {
    for drafter in [&[][..], &["--method", "pearl"]] {
        let temporary = tempfile::tempdir().unwrap();
        let run = Run::of("generate -p Hello --ignore-eos").with(drafter);
        let run = run.words("--max-tokens 400").temporary_folder(temporary.path());
        let mut running = run.start();
        running.wait_for_output();
        assert!(names(temporary.path()).is_empty());
        running.kill();
        running.finish();
        assert!(names(temporary.path()).is_empty());
    }
}

#[test]
fn a_random_seed_is_exact_in_every_reader_of_json() {
    let models = Models::pair();
    let generate = || {
        let run = Run::generate(&models).on_one_core().words("-p Hello --max-tokens 2");
        run.words("--temperature 1 --json")
    };
    for _ in 0..8 {
        let seed = generate().succeed().json()["seed"].as_u64().unwrap();
        assert!(seed < 1 << 53, "{seed}");
    }
    // A given seed is kept.
    let given = u64::MAX.to_string();
    let finished = generate().with(&["--seed", &given]).succeed();
    assert_eq!(finished.json()["seed"].as_u64().unwrap(), u64::MAX);
}

#[cfg(feature = "laboratory")]
fn make_pair(out: &Path) -> Run {
    let run = Run::of("make-pair").with_path("--out", out);
    run.words("--hidden=64 --intermediate=128 --layers=6 --draft-layers=2 --heads=4")
        .words("--kv-heads=2 --vocab-size=300 --context=512 --acceptance=0.7")
}

#[cfg(feature = "laboratory")]
#[test]
fn an_interrupted_pair_cannot_be_loaded() {
    let signals = [Signal::INT, Signal::TERM, Signal::KILL];
    for signal in signals.into_iter().filter(|&signal| !is_ignored(signal)) {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("pair");
        let mut running = make_pair(&out).words("--prompts=400 --tolerance=0.002").start();
        running.wait_until(|| has_partial(&out));
        running.signal(signal);
        assert_ne!(running.finish().code, Some(0));
        assert!(!out.join("target").exists() && !out.join("drafter").exists());
        assert_eq!(has_partial(&out), signal == Signal::KILL, "{:?}", names(&out));
        // The next run removes what the killed one left.
        make_pair(&out).words("--tolerance=0.1").succeed();
        assert_eq!(names(&out), ["drafter", "target"]);
    }
}

#[cfg(feature = "laboratory")]
#[test]
fn files_of_a_pair_have_ordinary_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pair");
    make_pair(&out).words("--tolerance=0.1").succeed();
    let expected = folder.path().join("expected");
    fs::write(&expected, "").unwrap();
    let mode = |file: &Path| file.metadata().unwrap().permissions().mode();
    for name in ["model.safetensors", "config.json", "tokenizer.json", "README.md"] {
        let file = out.join("target").join(name);
        assert_eq!(mode(&file), mode(&expected), "{name}");
    }
}

#[cfg(feature = "laboratory")]
#[test]
fn two_sweeps_of_one_table_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let (grid, table) = (folder.path().join("grid.toml"), folder.path().join("table.csv"));
    let text = "max-tokens = 400\nacceptance = { from = 0, to = 1, steps = 10000 }\n\
                draft-tokens = { from = 1, to = 20, step = 1 }\n";
    fs::write(&grid, text).unwrap();
    let sweep = || Run::of("simulate sweep --threads 1").with(&[&grid]).with_path("--out", &table);
    let mut first = sweep().start();
    first.wait_for_interrupt_handler();
    let owner = fs::read_to_string(folder.path().join(".table.csv.lock")).unwrap();
    let second = sweep().finish();
    second.assert_refused("table.csv", &[&format!("process {} is working", owner.trim())]);
    first.signal(Signal::TERM);
    assert_eq!(first.finish().code, Some(143));
    assert!(!folder.path().join(".table.csv.lock").exists());
}

#[test]
fn two_comparisons_in_one_folder_do_not_mix() {
    let models = Models::pair();
    let out = models.folder().join("bench");
    let bench = || {
        let run = Run::of("bench run --limit 1 --repeats 2000");
        run.words("--max-tokens 8").with_path("--model", &models.target()).with_path("--out", &out)
    };
    let mut first = bench().start();
    first.wait_until(|| out.join("answers.jsonl").exists());
    let owner = fs::read_to_string(out.join(".lock")).unwrap();
    bench().finish().assert_refused("bench", &[&format!("process {} is working", owner.trim())]);
    first.kill();
    first.finish();
    // The lock of a killed process does not stay.
    let run = Run::of("bench run --limit 1 --repeats 1");
    let run = run.words("--max-tokens 9").with_path("--model", &models.target());
    let third = run.with_path("--out", &out).finish();
    assert!(!third.errors.contains("is working"), "{}", third.errors);
}
