//! Sources of a prompt: option, file and standard input.

use crate::common::{Models, Run};
use std::fs;

fn generate(models: &Models) -> Run {
    Run::generate(models).on_one_core().words("--max-tokens 8 --json")
}

#[test]
fn all_sources_of_a_prompt_give_the_same_answer() {
    let models = Models::pair();
    let file = models.folder().join("prompt.txt");
    for prompt in ["Once upon a time", "Grüße,\n\n世界 🦀", " a\tb ", "with a line break\n"] {
        let expected = generate(&models).with(&["--prompt", prompt]).succeed().json();
        assert_eq!(expected["usage"]["prompt_tokens"], prompt.len() + 1, "bytes and a BOS");
        let short = generate(&models).with(&["-p", prompt]).succeed().json();
        assert_eq!(short["text"], expected["text"], "{prompt:?}");
        // One line break at the end of a file is not part of the prompt.
        for ending in ["\n", "\r\n"] {
            let written = format!("{prompt}{ending}");
            fs::write(&file, &written).unwrap();
            let runs = [
                ("a file", generate(&models).with_path("--prompt-file", &file)),
                ("a file, short option", generate(&models).with_path("-f", &file)),
                ("-", generate(&models).words("--prompt-file -").input(&*written)),
                ("a pipe", generate(&models).input(&*written)),
            ];
            for (source, run) in runs {
                let answer = run.succeed().json();
                for field in ["text", "tokens", "usage"] {
                    let what = format!("{field} of {written:?} from {source}");
                    let (found, expected) = (&answer[field], &expected[field]);
                    if field == "usage" {
                        assert_eq!(found["prompt_tokens"], expected["prompt_tokens"], "{what}");
                    } else {
                        assert_eq!(found, expected, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn only_one_line_break_at_the_end_is_dropped() {
    let models = Models::pair();
    for (written, tokens) in [("abc", 4), ("abc\r", 5), ("abc\n", 4), ("abc\r\n", 4), ("\n\n", 2)] {
        let answer = generate(&models).input(written).succeed().json();
        assert_eq!(answer["usage"]["prompt_tokens"], tokens, "{written:?}");
    }
}

#[test]
fn a_text_may_begin_with_a_hyphen() {
    let models = Models::pair();
    for prompt in ["- a list", "--", "-1", "--json is an option"] {
        let run = generate(&models).with(&["--prompt", prompt, "--stop", "---"]);
        let tokens = &run.succeed().json()["usage"]["prompt_tokens"];
        assert_eq!(*tokens, prompt.len() + 1, "{prompt}");
    }
}
