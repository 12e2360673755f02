//! Commands whose feature is not part of this build.

use crate::common::Run;

/// The commands that need a feature, whether this build has it, and the feature.
const COMMANDS: [(&[&str], &str, bool); 7] = [
    (&["serve"], "server", cfg!(feature = "server")),
    (&["make-pair"], "laboratory", cfg!(feature = "laboratory")),
    (&["analyze"], "laboratory", cfg!(feature = "laboratory")),
    (&["simulate"], "laboratory", cfg!(feature = "laboratory")),
    (&["simulate", "plot"], "plots", cfg!(feature = "plots") || !cfg!(feature = "laboratory")),
    (&["train"], "train", cfg!(feature = "train")),
    (&["distill"], "train", cfg!(feature = "train")),
];

fn missing() -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
    let missing = COMMANDS.into_iter().filter(|(.., is_in_build)| !is_in_build);
    missing.map(|(command, feature, _)| (command, feature))
}

#[test]
fn help_does_not_list_missing_commands() {
    for (command, _) in missing() {
        let (name, parents) = command.split_last().unwrap();
        let help = Run::forerun().with(parents).words("--help").succeed().output();
        let is_listed = |line: &str| line.trim_start().starts_with(&format!("{name} "));
        assert!(!help.lines().any(is_listed), "{name}: {help}");
    }
}

/// The error about the feature comes first, whatever the arguments are.
#[test]
fn missing_commands_name_their_feature() {
    for (command, feature) in missing() {
        let name = command.join(" ");
        let words = [
            format!("`forerun {name}` is not part of this build"),
            format!("cargo run --release --features {feature} -- {name} "),
            format!("cargo install --locked --path crates/cli --features {feature}"),
        ];
        for arguments in [&[][..], &["--help"], &["layers", "--out", "folder", "-n", "-1"]] {
            let finished = Run::forerun().with(command).with(arguments).finish();
            assert_eq!(finished.code, Some(1), "{name} {arguments:?}: {}", finished.errors);
            finished.assert_refused(&name, &[&words[0], &words[1], &words[2]]);
        }
    }
}
