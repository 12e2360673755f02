//! `forerun chat` at a terminal and at a pipe.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::common::{Models, Run};
use rexpect::session::{Options, PtySession, spawn_with_options};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Nothing here takes as long, however busy the machine.
const PATIENCE_MS: u64 = 120_000;

const PROMPT: &str = "> ";

/// A chat at a pseudo-terminal, its history in the models' folder.
struct Talk {
    session: PtySession,
}

impl Talk {
    fn begin(models: &Models, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
        command.args(["chat", "--model"]).arg(models.target());
        command.arg("--draft-model").arg(models.drafter());
        command.args(["--placement", &Run::one_core_placement(), "--ignore-eos"]).args(options);
        command.env("XDG_STATE_HOME", models.folder().join("state"));
        // An editor that knows its terminal.
        command.env("TERM", "xterm");
        let options = Options::new().timeout_ms(Some(PATIENCE_MS));
        let mut talk = Self { session: spawn_with_options(command, options).unwrap() };
        talk.expect("/help lists the commands");
        talk.expect(PROMPT);
        talk
    }

    /// Waits until a text has come. The session takes every byte for a character.
    fn expect(&mut self, text: &str) {
        let bytes: String = text.bytes().map(char::from).collect();
        self.session.exp_string(&bytes).unwrap();
    }

    fn enter(&mut self, line: &str) {
        self.session.send_line(line).unwrap();
    }

    /// Types a line, waits for what must be shown, and for the next prompt.
    fn say(&mut self, line: &str, shown: &[&str]) {
        self.enter(line);
        for text in shown {
            self.expect(text);
        }
        self.expect(PROMPT);
    }

    /// Waits until an answer is well under way: more has come than the line that was typed.
    fn wait_for_answer(&mut self) {
        self.session.exp_regex("(?s).{1000}").unwrap();
    }

    fn press(&mut self, key: char) {
        self.session.send_control(key).unwrap();
        self.session.flush().unwrap();
    }

    /// Types something, presses Ctrl-C, and waits for the next prompt.
    fn give_up(&mut self, typed: &str) {
        self.session.send(typed).unwrap();
        self.press('c');
        // The editor has let go of the line: what it showed of it before may have a prompt, too.
        self.expect("\x1b[?2004l");
        self.expect(PROMPT);
    }

    /// Presses Ctrl-D and waits for a good end.
    fn leave(mut self) {
        self.press('d');
        self.session.exp_eof().unwrap();
        let status = self.session.process().wait().unwrap();
        assert!(format!("{status:?}").ends_with(", 0)"), "{status:?}");
    }

    /// The conversation so far, as it is saved.
    fn messages(&mut self, models: &Models) -> Vec<(String, String)> {
        let file = models.folder().join("chat.json");
        self.say(&format!("/save {}", file.display()), &["messages are in"]);
        let messages: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let messages = messages.as_array().unwrap().iter();
        messages.map(|message| (text(&message["role"]), text(&message["content"]))).collect()
    }
}

/// What users said.
fn said(messages: &[(String, String)]) -> Vec<&str> {
    messages.iter().filter(|(role, _)| role == "user").map(|(_, text)| &text[..]).collect()
}

#[test]
fn a_conversation_of_several_turns_with_commands() {
    let models = Models::with_context(4096);
    let mut talk = Talk::begin(&models, &["-n", "20", "--system", "be kind"]);
    let end = "[ended at 20 tokens; --max-tokens allows more]";
    talk.say("/stats", &["there was no answer yet"]);
    talk.say("Hello", &[end]);
    talk.say("/method autoregressive", &["the method is autoregressive from the next answer on"]);
    talk.say("again", &[end]);
    talk.say("/method speculative", &["the method is speculative from"]);
    talk.enter("two\\");
    talk.expect("… ");
    talk.say("lines", &[end]);
    talk.say("/method magic", &["\"magic\" is not one of autoregressive, speculative"]);
    talk.say("/hlep", &["there is no command /hlep; /help lists"]);
    talk.say("/help", &["/system [TEXT]"]);
    talk.say(
        "/stats",
        &["last answer: 20 tokens", "MAT", "whole chat: 3 answers, 60 tokens", "MAT"],
    );
    let messages = talk.messages(&models);
    assert_eq!(messages[0], ("system".into(), "be kind".into()));
    assert_eq!(said(&messages), ["Hello", "again", "two\nlines"]);
    assert_eq!(messages.len(), 7);
    talk.say("/system", &["there is no system message"]);
    talk.say("/reset", &["the conversation begins anew"]);
    assert_eq!(talk.messages(&models), []);
    // Ctrl-C at an empty prompt does not leave at once, nor if something else comes in between.
    for _ in 0..2 {
        talk.press('c');
        talk.expect("Ctrl-C again or Ctrl-D to leave");
        talk.expect(PROMPT);
        talk.say("/method", &["the method is speculative"]);
    }
    // With something typed it clears the line, and no more.
    talk.press('c');
    talk.expect("Ctrl-C again or Ctrl-D to leave");
    talk.expect(PROMPT);
    talk.give_up("half a line");
    for second in ["", "lines"] {
        talk.enter("two\\");
        talk.expect("… ");
        talk.give_up(second);
    }
    talk.press('c');
    talk.expect("Ctrl-C again or Ctrl-D to leave");
    talk.expect(PROMPT);
    assert_eq!(talk.messages(&models), []);
    talk.leave();
    // The next chat remembers what was typed.
    let mut talk = Talk::begin(&models, &[]);
    talk.press('p');
    talk.expect("/save");
    talk.press('u');
    talk.leave();
}

#[test]
fn without_history_nothing_is_written() {
    let models = Models::pair();
    let mut talk = Talk::begin(&models, &["--no-history"]);
    talk.say("/method", &["the method is speculative"]);
    talk.press('c');
    talk.expect("Ctrl-C again");
    talk.expect(PROMPT);
    talk.press('c');
    talk.session.exp_eof().unwrap();
    assert!(!models.folder().join("state").exists());
}

#[test]
fn an_interrupted_answer_stays_and_the_conversation_goes_on() {
    let models = Models::with_context(1 << 20);
    for method in ["autoregressive", "speculative"] {
        let mut talk = Talk::begin(&models, &["-n", "1000000", "--method", method]);
        for turn in 1..=2 {
            talk.enter("Hello");
            talk.wait_for_answer();
            talk.press('c');
            talk.expect("[interrupted; the answer so far stays in the conversation]");
            talk.expect(PROMPT);
            let answers = format!("whole chat: {turn} answer");
            talk.say("/stats", &[&answers]);
        }
        fs::remove_file(models.folder().join("chat.json")).unwrap_or_default();
        let messages = talk.messages(&models);
        assert_eq!(said(&messages), ["Hello", "Hello"]);
        assert!(messages.iter().all(|(_, text)| !text.is_empty()), "{messages:?}");
        talk.leave();
    }
}

#[test]
fn what_the_context_cannot_hold_is_left_out_or_refused_aloud() {
    let models = Models::with_context(128);
    let mut talk = Talk::begin(&models, &["-n", "20"]);
    let end = "[ended at 20 tokens";
    talk.say("a question of thirty letters or so", &[end]);
    for _ in 0..3 {
        talk.say(
            "a question of thirty letters or so",
            &["[the context is full: the oldest turn was left out]", end],
        );
    }
    let long = "x".repeat(200);
    talk.say(&long, &["error: the message is too long by", "the model sees at most 128"]);
    talk.say("short", &[end]);
    let messages = talk.messages(&models);
    assert_eq!(said(&messages).len(), 5);
    assert!(!said(&messages).contains(&&*long));
    talk.leave();
}

/// A chat whose messages are piped in.
fn piped(models: &Models, input: &str, options: &[&str]) -> Run {
    let run = Run::forerun().with(&["chat"]).with_path("--model", &models.target());
    let run = run.with_path("--draft-model", &models.drafter()).on_one_core();
    run.with(&["-n", "30", "--ignore-eos"]).with(options).input(input)
}

#[test]
fn the_text_is_the_same_whatever_the_method() {
    let models = Models::with_context(4096);
    let fixed = ["--draft-tokens", "3"];
    let plain = piped(&models, "one\ntwo\nthree\n", &["--method", "autoregressive"]).succeed();
    let text = plain.output();
    assert!(text.len() > 90, "{text:?}");
    // Nothing but answers is on standard output, and no prompt anywhere.
    assert!(!text.contains(PROMPT) && !plain.errors.contains(PROMPT), "{}", plain.errors);
    assert!(plain.errors.contains("ships no chat template"), "{}", plain.errors);
    assert_eq!(piped(&models, "one\n\ntwo\nthree", &fixed).succeed().output(), text);
    let switched =
        "one\n/method autoregressive\ntwo\n/stats\n/method speculative\nthree\n/quit\nfour";
    let switched = piped(&models, switched, &fixed).succeed();
    assert_eq!(switched.output(), text);
    assert!(switched.errors.contains("whole chat: 2 answers, 60 tokens"), "{}", switched.errors);
    let from_plain = "one\n/method speculative\ntwo\nthree";
    let options = [&fixed[..], &["--method", "autoregressive"]].concat();
    assert_eq!(piped(&models, from_plain, &options).succeed().output(), text);
}

#[test]
fn templates_that_cannot_be_used_are_refused_before_loading() {
    let models = Models::pair();
    let file = models.folder().join("t.jinja");
    let write = |text: &str| fs::write(&file, text).unwrap();
    let refuse = |choice: &str, words: &[&str]| {
        piped(&models, "x", &["--chat-template", choice]).finish().assert_refused(choice, words);
    };
    refuse("nowhere", &["no chat template \"nowhere\"", "plain"]);
    write("{% for %}");
    refuse(file.to_str().unwrap(), &["t.jinja", "line 1"]);
    write("{{ raise_exception('never') }}");
    refuse(file.to_str().unwrap(), &["the model's chat template refuses", "never"]);
    // One that has no text for a message, or no end, says so, and the chat goes on.
    write("{% if messages|length > 1 %}x{% endif %}");
    let run = piped(&models, "a\n/reset\n", &["--chat-template", file.to_str().unwrap()]);
    let finished = run.succeed();
    assert!(finished.errors.contains("has no text for these messages"), "{}", finished.errors);
    assert!(finished.errors.contains("begins anew"), "{}", finished.errors);
    write(
        "{% if messages[0].content == 'a' %}{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}\
         {% endfor %}{% endfor %}{% endfor %}{% endif %}",
    );
    let run = piped(&models, "a\n/reset\n", &["--chat-template", file.to_str().unwrap()]);
    let finished = run.succeed();
    assert!(finished.errors.contains("t.jinja cannot render"), "{}", finished.errors);
    assert!(finished.errors.contains("does not come to an end"), "{}", finished.errors);
    assert!(finished.errors.contains("begins anew"), "{}", finished.errors);
    // A refusal in the middle takes the message back, and the chat goes on.
    write(
        "{% if messages|length > 1 %}{{ raise_exception('once') }}{% endif %}{{ messages[0].content }}",
    );
    let run = piped(&models, "a\nb\n/reset\nc\n", &["--chat-template", file.to_str().unwrap()]);
    let finished = run.succeed();
    assert!(finished.errors.contains("refuses these messages: once"), "{}", finished.errors);
    assert!(finished.errors.contains("begins anew"), "{}", finished.errors);
}
