//! Options from a configuration file.

use crate::common::{Models, Run};

#[test]
fn options_come_from_the_line_then_the_environment_then_the_file() {
    let models = Models::pair();
    let file = models.folder().join("options.toml");
    let (target, drafter) = (models.target(), models.drafter());
    let text = format!(
        "model = {target:?}\n[generate]\ndraft-model = {drafter:?}\nprompt = \"Hello\"\n\
         max-tokens = 7\nignore-eos = true\njson = true\n[serve]\nport = 1\n"
    );
    std::fs::write(&file, text).unwrap();
    let generated = |run: Run| run.succeed().json()["tokens"].as_array().unwrap().len();
    let run = || Run::of("generate");
    assert_eq!(generated(run().with_path("--config", &file)), 7);
    let line = run().with_path("--config", &file).words("--max-tokens 5");
    assert_eq!(generated(line), 5);
    assert_eq!(generated(run().variable("FORERUN_CONFIG", &file)), 7);
    // The file is named where one of its values is wrong.
    std::fs::write(&file, "[generate]\nprompt = \"Hello\"\nmax-tokens = \"many\"\n").unwrap();
    let wrong = run().with_path("--config", &file).finish();
    wrong.assert_refused("a wrong value", &["--max-tokens", "options.toml"]);
    let missing = run().with_path("--config", &models.folder().join("absent.toml")).finish();
    missing.assert_refused("a missing file", &["absent.toml"]);
}
