//! `forerun run`: one answer, or a chat.

use crate::common::{Models, Run, edit_json};
use std::path::Path;

/// The options of an answer that is always the same.
const GREEDY: [&str; 5] = ["--ignore-eos", "-n", "12", "--temperature", "0"];

fn run(model: &Path) -> Run {
    Run::of("run").with(&[model]).with(&GREEDY)
}

/// Returns what `forerun chat` answers to one line.
fn chat(model: &Path, line: &str) -> String {
    let chat = Run::of("chat").with(&GREEDY);
    chat.with_path("--model", model).input(format!("{line}\n")).succeed().output()
}

#[test]
fn a_prompt_is_answered_once_as_in_a_chat() {
    let models = Models::pair();
    let expected = chat(&models.target(), "Hello there");
    assert_eq!(run(&models.target()).with(&["Hello there"]).succeed().output(), expected);
    // Several words are one prompt, and options may stand between them.
    let words = Run::of("run -n 12").with(&[models.target()]);
    let words = words.words("Hello --ignore-eos there --temperature 0").succeed();
    assert_eq!(words.output(), expected);
    let with_drafter = run(&models.target()).with(&["Hello there"]);
    let with_drafter = with_drafter.with_path("--draft-model", &models.drafter()).on_one_core();
    assert_eq!(with_drafter.succeed().output(), expected);
}

#[test]
fn piped_text_is_one_message_before_the_prompt() {
    let models = Models::pair();
    let answer = |input: &str, prompt: &[&str]| {
        run(&models.target()).with(prompt).input(input).succeed().output()
    };
    let lines = answer("one\ntwo\n", &[]);
    assert_eq!(lines, chat(&models.target(), "one\\\ntwo"));
    assert_eq!(answer("one\n", &["two"]), chat(&models.target(), "one\\\n\\\ntwo"));
    run(&models.target()).input(" \n").finish().assert_refused("no prompt", &["no prompt"]);
}

#[test]
fn answers_end_at_a_limit_and_statistics_are_shown_on_request() {
    let models = Models::with_context(512);
    let long = Run::of("run").with(&[models.target()]).words("Hi --ignore-eos");
    let finished = long.words("--verbose").succeed();
    assert!(finished.errors.contains("[stopped at the end of the model's context]"));
    assert!(finished.errors.contains("tokens/s"), "{}", finished.errors);
    let models = Models::with_context(4096);
    let limited = Run::of("run").with(&[models.target()]).words("Hi --ignore-eos").succeed();
    let note = "[stopped after 2048 tokens; --max-tokens allows more]";
    assert!(limited.errors.contains(note), "{}", limited.errors);
    let quiet = run(&models.target()).words("Hi --quiet").succeed();
    assert_eq!(quiet.errors, "");
}

#[test]
fn chats_say_how_they_sample() {
    let models = Models::pair();
    let answer = |command: &str, options: &[&str]| {
        let run = Run::forerun().with(&[command]).with_path("--model", &models.target());
        run.words("--ignore-eos -n 12 --seed 3").with(options).input("Hello\n").succeed()
    };
    let moderate = ["--temperature", "0.8", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.05"];
    for command in ["run", "chat"] {
        let check = |options: &[&str], same: &[&str], note: &str| {
            let finished = answer(command, options);
            assert_eq!(finished.output(), answer(command, same).output(), "{options:?}");
            assert_eq!(finished.errors.matches("sampling: ").count(), 1, "{}", finished.errors);
            assert!(finished.errors.contains(note), "{note}: {}", finished.errors);
        };
        let note = "sampling: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05";
        check(&[], &moderate, &format!("{note}, the default\n"));
        let warm = [&moderate[2..], &["--temperature", "1.5"]].concat();
        let note = "sampling: temperature 1.5, top-k 40, top-p 0.95, min-p 0.05\n";
        check(&["--temperature", "1.5"], &warm, note);
        check(
            &["--temperature", "0"],
            &["--temperature", "0", "--top-k", "0"],
            "sampling: greedy\n",
        );
    }
    edit_json(&models.target().join("generation_config.json"), |options| {
        options["do_sample"] = true.into();
        options["temperature"] = 1.4.into();
    });
    let suggested = answer("chat", &[]);
    let note = "sampling: temperature 1.4, as the checkpoint suggests\n";
    assert!(suggested.errors.contains(note), "{}", suggested.errors);
    let same = ["--temperature", "1.4", "--top-k", "0", "--top-p", "1", "--min-p", "0"];
    assert_eq!(suggested.output(), answer("run", &same).output());
}

#[test]
fn json_is_one_object_with_text_counts_and_speed() {
    let models = Models::pair();
    let text = run(&models.target()).with(&["Hello there"]).succeed().output();
    let answer = run(&models.target()).with(&["Hello there", "--json"]).succeed().json();
    assert_eq!(answer["text"].as_str().unwrap().trim_end(), text.trim_end());
    assert_eq!(answer["finish_reason"], "max_tokens");
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    assert!(answer["usage"]["prompt_tokens"].as_u64() > Some(0), "{answer}");
    assert!(answer["timings"]["tokens_per_second"].as_f64() > Some(0.0), "{answer}");
}

#[test]
fn a_structured_answer_that_is_cut_is_no_success() {
    let models = Models::pair();
    let answer = |tokens: &str, options: &[&str]| {
        let run = Run::of("run").with(&[models.target()]);
        run.with(&["Hi", "--regex", "[a-z]{20}", "-n", tokens]).with(options).finish()
    };
    let whole = answer("30", &[]);
    assert_eq!((whole.code, whole.output().len()), (Some(0), 21), "{}", whole.errors);
    for options in [&[][..], &["--json"]] {
        let cut = answer("5", options);
        assert_eq!(cut.code, Some(3), "{}", cut.errors);
        assert!(cut.errors.contains("error: the answer was cut after 5 tokens"), "{}", cut.errors);
    }
}

#[test]
fn an_answer_that_repeats_itself_is_ended_with_a_hint() {
    let models = Models::pair();
    let answer = |options: &[&str]| {
        let run = Run::of("run").with(&[models.target()]);
        run.words("Hi -n 250 --logit-bias 66=100").with(options).succeed()
    };
    let ended = answer(&[]);
    assert_eq!(ended.output(), "B".repeat(200) + "\n");
    assert!(ended.errors.contains("repeats itself"), "{}", ended.errors);
    assert!(ended.errors.contains("--repetition-penalty 1.1"), "{}", ended.errors);
    assert_eq!(answer(&["--json"]).json()["finish_reason"], "repetition");
    let whole = answer(&["--ignore-eos"]);
    assert_eq!(whole.output(), "B".repeat(250) + "\n");
}

#[test]
fn the_demonstration_pair_has_a_name() {
    let story = |name: &[&str]| {
        let run = Run::of("run").with(name);
        run.words("--seed 1 -n 20").input("Tell me a story about a fox.").succeed()
    };
    let named = story(&["demo"]);
    assert!(named.output().len() > 20, "{}", named.output());
    assert!(!named.errors.contains("no --model given"), "{}", named.errors);
    let unnamed = story(&[]);
    assert_eq!(unnamed.output(), named.output());
    assert!(unnamed.errors.contains("no --model given"), "{}", unnamed.errors);
    let generate = |model: &[&str]| {
        let run = Run::forerun().with(&["generate", "--prompt", "Once upon a time", "-n", "20"]);
        run.words("--json").with(model).succeed().json()
    };
    let (named, unnamed) = (generate(&["--model", "demo"]), generate(&[]));
    assert_eq!(named["tokens"], unnamed["tokens"]);
    assert!(named["usage"]["speculative"]["draft_tokens"].as_u64() > Some(0), "{named}");
}

#[test]
fn names_that_are_no_models_say_what_is() {
    let refused = Run::of("run llama3.2 Hi").finish();
    refused.assert_refused("llama3.2", &["llama3.2", "hub ids have an owner"]);
    let prompt = Run::forerun().with(&["generate", "Once upon a time"]).finish();
    prompt.assert_refused("a prompt as a model", &["Is that a prompt?", "--prompt"]);
    for line in ["run nope.gguf Hi", "generate -m nope.gguf -p Hi"] {
        Run::of(line).finish().assert_refused(line, &["nope.gguf: no such file or directory"]);
    }
    let empty = tempfile::tempdir().unwrap();
    run(empty.path()).words("Hi").finish().assert_refused("an empty folder", &["config.json"]);
}

#[test]
fn raw_text_for_a_model_with_a_chat_template_is_noted() {
    let models = Models::pair();
    let notes =
        |prompt: &str| Run::generate(&models).with(&["-p", prompt, "-n", "2"]).succeed().errors;
    assert!(!notes("Why?").contains("chat template"));
    std::fs::write(models.target().join("chat_template.jinja"), "{{ messages[0].content }}")
        .unwrap();
    assert!(notes("Why?").contains("forerun run answers"));
    assert!(!notes("<s>Why?").contains("chat template"), "the prompt has a template's tokens");
}

/// An error in the only message is the error of the command.
#[test]
fn a_prompt_that_does_not_fit_fails() {
    let models = Models::with_context(16);
    let finished = run(&models.target()).with(&["word ".repeat(50)]).finish();
    assert_eq!(finished.code, Some(1), "{}", finished.errors);
    finished.assert_refused("a long prompt", &["too long"]);
}
