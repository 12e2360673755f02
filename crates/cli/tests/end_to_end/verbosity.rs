//! `--verbose`, `--quiet`, `RUST_LOG`, and options from environment variables.

use crate::common::{Models, Run};

#[test]
fn quiet_commands_report_only_errors() {
    let models = Models::pair();
    let run = || Run::generate_with_drafter(&models).words("-p Hello -n 8");
    let normal = run().succeed();
    assert!(normal.errors.contains("tokens/s"), "{}", normal.errors);
    for quiet in [
        run().words("--quiet"),
        run().words("-q"),
        run().variable("FORERUN_QUIET", "1"),
        run().variable("RUST_LOG", "error"),
    ] {
        let quiet = quiet.succeed();
        assert_eq!((quiet.output(), quiet.errors.as_str()), (normal.output(), ""));
    }
    let wrong = Run::of("generate -q -p x --top-p 7").finish();
    wrong.assert_refused("--top-p", &["error: ", "top-p is 7"]);
    let both = Run::of("devices -q -v").finish();
    both.assert_refused("both", &["--quiet", "--verbose"]);
}

#[test]
fn verbose_commands_report_details() {
    let models = Models::pair();
    let run = || Run::generate_with_drafter(&models).words("-p Hello -n 8");
    for verbose in [run().words("-v"), run().variable("RUST_LOG", "debug")] {
        let verbose = verbose.variable("FORERUN_SEED", "3").succeed();
        for word in
            ["options come from FORERUN_SEED", "finished loading", "placement", "instruction set"]
        {
            assert!(verbose.errors.contains(word), "{word}: {}", verbose.errors);
        }
    }
}

#[test]
fn every_option_has_a_variable() {
    let models = Models::pair();
    let run = Run::of("generate --json").variable("FORERUN_MODEL", models.target());
    let run = run.variable("FORERUN_PROMPT", "Hello").variable("FORERUN_IGNORE_EOS", "true");
    let json = run.variable("FORERUN_MAX_TOKENS", "5").succeed().json();
    assert_eq!(json["usage"]["completion_tokens"], 5);
    let wrong = Run::of("devices").variable("FORERUN_ROUNDS", "many").finish();
    wrong.assert_refused("a variable", &["--rounds", "further options come from FORERUN_ROUNDS"]);
}
