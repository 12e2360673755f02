//! Commands that need only the binary.

use crate::common::{Finished, Models, Run};
use forerun::Placement;
use forerun::placement::{DeviceGroup, Topology};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `forerun generate` without a model, and checks that no temporary files are left.
fn generate(options: &[&str]) -> Finished {
    let temporary = tempfile::tempdir().unwrap();
    let run = Run::of("generate -p Hello").with(options);
    let finished = run.temporary_folder(temporary.path()).finish();
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{options:?} left {left:?}");
    finished
}

#[test]
fn without_a_model_the_demonstration_pair_is_used_and_its_files_are_deleted() {
    let mut texts = Vec::new();
    for options in [&[][..], &["--method", "autoregressive"], &["--drafter", "prompt-lookup"]] {
        let finished = generate(&[options, &["--max-tokens", "12", "--ignore-eos"]].concat());
        assert_eq!(finished.code, Some(0), "{}", finished.errors);
        let lines: Vec<&str> = finished.errors.lines().collect();
        assert_eq!(lines.len(), 2, "{}", finished.errors);
        assert!(lines[0].contains("no --model given") && lines[0].contains("demonstration pair"));
        assert!(lines[1].contains("12 tokens"), "{}", lines[1]);
        texts.push(finished.output());
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[test]
fn the_files_of_the_demonstration_pair_are_deleted_after_an_error() {
    generate(&["--placement", "target=gpu:0"]).assert_refused("--placement", &["gpu:0"]);
    generate(&["--top-p", "7"]).assert_refused("--top-p", &["top-p is 7"]);
}

#[cfg(all(feature = "gpu", target_os = "linux"))]
#[test]
fn without_a_gpu_the_error_says_what_to_do() {
    let placement = ["--placement", "drafter=cpu:0,target=gpu:0"];
    let run = Run::of("generate --prompt Once").with(&placement);
    let finished = run.variable("VK_DRIVER_FILES", "/nowhere").finish();
    assert_ne!(finished.code, Some(0));
    for words in ["no GPU was found for gpu:0", "Vulkan driver", "forerun doctor"] {
        assert!(finished.errors.contains(words), "{}", finished.errors);
    }
}

#[test]
fn devices_lists_the_cores_and_the_default_placements_with_reasons() {
    let output = Run::of("devices").succeed().output();
    let topology = Topology::of_this_machine();
    let cores = topology.default_cores();
    let shared = Placement::automatic(&cores, None, 1);
    let mut lines = vec![
        format!("logical processors   {}", topology.processors().len()),
        format!("  {}", DeviceGroup::new(&topology.processors())),
        format!("default threads      {}", cores.len()),
        "default placement    leaves busy cores (`--pin` stays on them)".into(),
        format!("  others           {shared}"),
    ];
    lines.extend(topology.limits().iter().map(|limit| format!("  {limit}")));
    for expected in lines {
        assert!(output.lines().any(|line| line == expected), "{expected}: {output}");
    }
    assert!(output.contains("instruction sets"), "{output}");
}

/// A cgroup of this test, with a quota of one and a half processors.
struct CgroupWithQuota(PathBuf);

impl CgroupWithQuota {
    /// Creates the group, if this process may.
    fn create() -> Option<Self> {
        let create = |root: &str, quota: &str, value: &str| {
            let folder = Path::new(root).join(format!("forerun-test-{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            let group = Self(folder);
            // Only a folder of a cgroup has this file.
            let set = fs::OpenOptions::new().write(true).open(group.0.join(quota));
            set.and_then(|mut file| file.write_all(value.as_bytes())).ok()?;
            Some(group)
        };
        create("/sys/fs/cgroup", "cpu.max", "150000 100000")
            .or_else(|| create("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "150000"))
    }
}

impl Drop for CgroupWithQuota {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.0));
    }
}

#[test]
fn devices_measures_passes_of_the_given_numbers_of_rows() {
    let models = Models::pair();
    let devices = |rows: &str| {
        let run = Run::forerun().with(&["devices", "--rounds", "1", "--past", "4", "--rows", rows]);
        run.with_path("--model", &models.target()).finish()
    };
    let output = devices("3,10").output();
    let rows = output.lines().filter(|line| line.contains("] of one row"));
    let rows: Vec<&str> = rows.map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(rows, ["3", "10"], "{output}");
    devices("4096").assert_refused("--rows", &["4096 rows", "context"]);
    devices("0").assert_refused("--rows", &["0"]);
}

#[test]
fn devices_names_the_quota_of_a_cgroup() {
    let Some(group) = CgroupWithQuota::create() else {
        eprintln!("skipped: this process may not create a cgroup with a CPU quota");
        return;
    };
    let script = r#"echo $$ > "$0/cgroup.procs" || exit 77; exec "$1" devices"#;
    let mut shell = Command::new("sh");
    let command = shell.args(["-c", script]).arg(&group.0).arg(env!("CARGO_BIN_EXE_forerun"));
    let output = command.output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("skipped: this process may not move to another cgroup");
        return;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("default threads      1\n"), "{text}");
    assert!(text.contains("\n  cgroup quota 1.5 → at most 1 thread\n"), "{text}");
}

#[test]
fn help_names_every_method_and_drafter() {
    let output = Run::of("generate --help").succeed().output();
    for name in [
        "autoregressive",
        "speculative",
        "pearl",
        "dsi",
        "none",
        "model",
        "prompt-lookup",
        "suffix",
        "rejection",
    ] {
        assert!(output.contains(name), "{name}: {output}");
    }
    let output = Run::of("--help").succeed().output();
    assert!(output.contains("generate") && output.contains("devices"), "{output}");
    let output = Run::of("--version").succeed().output();
    assert_eq!(output, format!("forerun {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn without_a_command_the_help_is_shown() {
    let finished = Run::forerun().finish();
    assert_eq!((finished.code, &*finished.output()), (Some(2), ""));
    assert!(finished.errors.contains("Usage: forerun"), "{}", finished.errors);
    assert!(finished.errors.contains("forerun generate --prompt"), "{}", finished.errors);
}
