//! `--show-drafts`: the same text, with marks for accepted and rejected drafts.

use crate::common::{Models, Run};
use rexpect::session::{Options, spawn_with_options};
use std::process::Command;

/// Returns the text without rejected drafts and marks, the number of rejections, and the number of
/// accepted drafts.
fn unmarked(shown: &str) -> (String, usize, usize) {
    let (mut text, mut rest, mut rejected) = (String::new(), shown, 0);
    while let Some((before, after)) = rest.split_once("[-") {
        text += before;
        rest = after.split_once("-]").unwrap().1;
        rejected += 1;
    }
    text += rest;
    let accepted = text.matches("{+").count();
    assert_eq!(text.matches("+}").count(), accepted, "{shown}");
    (text.replace("{+", "").replace("+}", ""), rejected, accepted)
}

fn run(models: &Models, options: &str) -> Run {
    let run = Run::generate_with_drafter(models).with(&["--prompt", "one two one"]);
    run.words("--max-tokens 40 --ignore-eos").words(options)
}

#[test]
fn the_text_has_marks_for_accepted_and_rejected_drafts() {
    let models = Models::pair();
    let plain = run(&models, "--method autoregressive").succeed().output();
    let shown = run(&models, "--method autoregressive --show-drafts").succeed();
    assert_eq!(shown.output(), plain, "nothing was drafted");
    for options in [
        "--draft-tokens 3",
        "--draft-tokens 2 --tree top:3x2",
        "--method pearl --draft-tokens 3",
        "--drafter model --draft-tokens 3 --temperature 0.9 --seed 7 --verify coupled",
    ] {
        let expected = run(&models, options).succeed().output();
        let shown = run(&models, &format!("{options} --show-drafts")).succeed();
        let (text, rejected, accepted) = unmarked(&shown.output());
        assert_eq!(text, expected, "{options}");
        assert!(rejected > 0 && accepted > 0, "{options}: {}", shown.output());
        let counted = shown.errors.lines().find(|line| line.contains("draft tokens accepted"));
        let counted: Vec<&str> = counted.unwrap().split([' ', ',']).collect();
        let numbers: Vec<usize> = counted.iter().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers[0] + numbers[2], 40, "{options}: {counted:?}");
        // The rounds of PEARL depend on timing.
        assert!(options.contains("pearl") || numbers[1] == rejected, "{options}: {counted:?}");
    }
    // A stop string may end the text within a piece.
    let cut: String = plain.chars().skip(plain.chars().count() / 3).take(2).collect();
    if cut.chars().all(char::is_alphanumeric) {
        let stopped = |more: &[&str]| {
            run(&models, "--draft-tokens 3").with(&["--stop", &cut]).with(more).succeed().output()
        };
        assert_eq!(unmarked(&stopped(&["--show-drafts"])).0, stopped(&[]));
    }
    let json = run(&models, "--json --show-drafts").finish();
    json.assert_refused("two outputs", &["--show-drafts", "--json"]);
}

/// Generates text at a terminal. Returns what it shows, and the same text through a pipe.
#[cfg(unix)]
fn at_a_terminal(max_tokens: &str) -> (String, String) {
    let models = Models::pair();
    let options = ["--prompt", "one two one", "--max-tokens", max_tokens, "--ignore-eos"];
    let piped = Run::generate_with_drafter(&models).with(&options).words("--draft-tokens 3");
    let piped = piped.succeed().output();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    command.args(["generate", "--model"]).arg(models.target());
    command.arg("--draft-model").arg(models.drafter());
    command.args(["--placement", &Run::one_core_placement(), "--draft-tokens", "3"]);
    command.args(options).env_remove("NO_COLOR");
    let limits = Options::new().timeout_ms(Some(120_000));
    let mut session = spawn_with_options(command, limits).unwrap();
    let shown = session.exp_eof().unwrap();
    // The session reads each byte as a character, and the terminal adds carriage returns.
    let shown: Vec<u8> = shown.chars().map(|byte| byte as u8).collect();
    (String::from_utf8(shown).unwrap().replace("\r\n", "\n"), piped)
}

/// On a terminal, the grey prompt and the green draft tokens add up to the piped text.
#[test]
#[cfg(unix)]
fn a_terminal_shows_the_prompt_the_drafts_and_the_gain() {
    let (shown, piped) = at_a_terminal("100");
    assert!(shown.contains("\x1b[90mone two one\x1b[0m"), "{shown}");
    assert!(shown.contains("\x1b[32m"), "{shown}");
    let last = shown.trim_end().lines().last().unwrap();
    assert!(
        last.contains(" × plain decoding: ") && last.contains(" tokens came from drafts"),
        "{last}"
    );
    let plain = ["\x1b[90m", "\x1b[32m", "\x1b[0m"]
        .iter()
        .fold(shown.clone(), |text, escape| text.replace(escape, ""));
    assert!(plain.contains(&format!("one two one{piped}")), "{plain} {piped}");
}

/// A gain is measured over many tokens, or not at all.
#[test]
#[cfg(unix)]
fn a_short_answer_has_no_gain() {
    let (shown, _) = at_a_terminal("40");
    assert!(shown.contains("tokens/s") && !shown.contains("plain decoding"), "{shown}");
}
