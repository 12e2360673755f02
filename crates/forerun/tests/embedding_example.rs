//! The embedding example runs unchanged, and is at most 20 lines long.

use std::process::Command;

/// Returns a command that runs the example: the program that the test run has built, or cargo if
/// only this test was built.
fn example() -> Command {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().unwrap().with_file_name("examples").join("embed");
    if built.is_file() {
        return Command::new(built);
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["run", "--quiet", "--locked", "--package", "forerun", "--example", "embed"])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

#[test]
fn the_embedding_example_runs() {
    let run = example().output().unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{stderr}");
    let stdout = String::from_utf8(run.stdout).unwrap();
    assert!(stdout.contains("64 tokens") && stdout.contains("tokens/s"), "{stdout}");
}

#[test]
fn the_embedding_example_is_short() {
    let text = include_str!("../examples/embed.rs");
    let main = text.split("fn main").nth(1).unwrap();
    assert!(main.lines().count() <= 20, "{} lines", main.lines().count());
}
