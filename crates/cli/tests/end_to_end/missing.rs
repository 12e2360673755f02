//! Commands whose feature is not part of this build.

use crate::common::Run;

/// The error about the feature comes first, whatever the arguments are.
#[test]
fn missing_commands_name_their_feature() {
    let laboratory = cfg!(feature = "laboratory");
    let table: [(&[&str], &str, bool); 7] = [
        (&["bench", "run"], "laboratory", laboratory),
        (&["make-pair"], "laboratory", laboratory),
        (&["analyze"], "laboratory", laboratory),
        (&["simulate"], "laboratory", laboratory),
        (&["simulate", "plot"], "plots", cfg!(feature = "plots") || !laboratory),
        (&["train"], "train", cfg!(feature = "train")),
        (&["distill"], "train", cfg!(feature = "train")),
    ];
    for (command, feature, _) in table.into_iter().filter(|(.., is_in_build)| !is_in_build) {
        let name = command.join(" ");
        let words = [
            format!("`forerun {name}` is not part of this build"),
            format!("cargo run --release --features {feature} -- {name} "),
        ];
        for arguments in [&[][..], &["--help"], &["layers", "--out", "folder", "-n", "-1"]] {
            let finished = Run::forerun().with(command).with(arguments).finish();
            assert_eq!(finished.code, Some(1), "{name} {arguments:?}: {}", finished.errors);
            finished.assert_refused(&name, &[&words[0], &words[1]]);
        }
    }
}
