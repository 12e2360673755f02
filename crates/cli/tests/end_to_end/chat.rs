//! `forerun chat` at a terminal and with a pipe.

use crate::common::{Models, Run};
use rexpect::session::{Options, PtySession, spawn_with_options};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Time after which a chat is considered stuck.
const TIMEOUT_MS: u64 = 120_000;

const PROMPT: &str = "> ";

/// A chat at a pseudo-terminal, with its history in the directory of the models.
struct TerminalChat {
    session: PtySession,
}

impl TerminalChat {
    fn start(models: &Models, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
        command.args(["chat", "--model"]).arg(models.target());
        command.arg("--draft-model").arg(models.drafter());
        command.args(["--placement", &Run::one_core_placement(), "--ignore-eos"]);
        command.args(["--temperature", "0"]).args(options);
        command.env("XDG_STATE_HOME", models.folder().join("state"));
        // The line editor needs a known terminal.
        command.env("TERM", "xterm");
        let options = Options::new().timeout_ms(Some(TIMEOUT_MS));
        let mut chat = Self { session: spawn_with_options(command, options).unwrap() };
        chat.expect("/help lists the commands");
        chat.expect(PROMPT);
        chat
    }

    /// Waits for a text in the output. The session reads each byte as a character.
    fn expect(&mut self, text: &str) {
        let bytes: String = text.bytes().map(char::from).collect();
        self.session.exp_string(&bytes).unwrap();
    }

    fn enter(&mut self, line: &str) {
        self.session.send_line(line).unwrap();
    }

    /// Types a line, and waits for these texts and the next prompt.
    fn submit(&mut self, line: &str, shown: &[&str]) {
        self.enter(line);
        for text in shown {
            self.expect(text);
        }
        self.expect(PROMPT);
    }

    /// Waits until an answer has clearly begun: the output is longer than the typed line.
    fn wait_for_answer(&mut self) {
        self.session.exp_regex("(?s).{1000}").unwrap();
    }

    fn press(&mut self, key: char) {
        self.session.send_control(key).unwrap();
        self.session.flush().unwrap();
    }

    /// Types something, discards it with Ctrl-C, and waits for the next prompt.
    fn discard(&mut self, typed: &str) {
        self.session.send(typed).unwrap();
        self.press('c');
        // The editor has released the line. Earlier output of the line may also contain a prompt.
        self.expect("\x1b[?2004l");
        self.expect(PROMPT);
    }

    /// Presses Ctrl-D, and checks that the chat ends successfully.
    fn leave(mut self) {
        self.press('d');
        self.session.exp_eof().unwrap();
        let status = self.session.process().wait().unwrap();
        assert!(format!("{status:?}").ends_with(", 0)"), "{status:?}");
    }

    /// Saves the conversation and returns its messages.
    fn messages(&mut self, models: &Models) -> Vec<(String, String)> {
        let file = models.folder().join("chat.json");
        self.submit(&format!("/save {}", file.display()), &["wrote ", " messages to "]);
        let messages: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let messages = messages.as_array().unwrap().iter();
        messages.map(|message| (text(&message["role"]), text(&message["content"]))).collect()
    }
}

/// Returns the user's messages.
fn user_messages(messages: &[(String, String)]) -> Vec<&str> {
    messages.iter().filter(|(role, _)| role == "user").map(|(_, text)| &text[..]).collect()
}

/// A terminal marks pasted text, or sends it like typed lines.
#[test]
fn a_pasted_message_keeps_its_lines_and_commands_follow_it() {
    let models = Models::with_context(4096);
    let mut chat = TerminalChat::start(&models, &["-n", "4"]);
    for (start, end) in [("\x1b[200~", "\x1b[201~\r"), ("", "")] {
        let pasted = "\"\"\"\rone\r\rtwo\r\"\"\"\r/temperature=0\r";
        chat.session.send(&format!("{start}{pasted}{end}")).unwrap();
        chat.session.flush().unwrap();
        chat.expect("the next answer will have temperature 0");
        chat.expect(PROMPT);
    }
    let messages = chat.messages(&models);
    assert_eq!(user_messages(&messages), ["one\n\ntwo"; 2]);
}

#[test]
fn a_conversation_of_several_turns_with_commands() {
    let models = Models::with_context(4096);
    let mut chat = TerminalChat::start(&models, &["-n", "20", "--system", "be kind"]);
    let end = "[stopped after 20 tokens]";
    chat.submit("/stats", &["no answers yet"]);
    chat.submit("Hello", &["[stopped after 20 tokens; /set max-tokens allows more]"]);
    chat.submit("/method autoregressive", &["the next answer will use the method autoregressive"]);
    chat.submit("again", &[end]);
    chat.submit("/method speculative", &["the next answer will use the method speculative"]);
    chat.enter("two\\");
    chat.expect("… ");
    chat.submit("lines", &[end]);
    chat.enter("\"\"\"/three");
    chat.expect("… ");
    chat.submit("lines\"\"\"", &[end]);
    chat.submit("/method magic", &["\"magic\" is not one of autoregressive, speculative"]);
    chat.submit("/hlep", &["there is no command /hlep; /help lists"]);
    chat.submit("/help", &["/system [TEXT]"]);
    chat.submit("/stats", &["last answer: 20 tokens", "whole chat: 4 answers, 80 tokens"]);
    let messages = chat.messages(&models);
    assert_eq!(messages[0], ("system".into(), "be kind".into()));
    assert_eq!(user_messages(&messages), ["Hello", "again", "two\nlines", "/three\nlines"]);
    assert_eq!(messages.len(), 9);
    chat.submit("/system", &["the next answer will have no system message"]);
    chat.submit("/clear", &["started a new conversation"]);
    assert_eq!(chat.messages(&models), []);
    // One Ctrl-C at an empty prompt does not leave, nor do two with other input in between.
    for _ in 0..2 {
        chat.press('c');
        chat.expect("Ctrl-C again or Ctrl-D to leave");
        chat.expect(PROMPT);
        chat.submit("/method", &["the method is speculative"]);
    }
    // Ctrl-C after typing only clears the line.
    chat.press('c');
    chat.expect("Ctrl-C again or Ctrl-D to leave");
    chat.expect(PROMPT);
    chat.discard("half a line");
    for second in ["", "lines"] {
        chat.enter("two\\");
        chat.expect("… ");
        chat.discard(second);
    }
    chat.press('c');
    chat.expect("Ctrl-C again or Ctrl-D to leave");
    chat.expect(PROMPT);
    assert_eq!(chat.messages(&models), []);
    chat.leave();
    // The next chat has the history.
    let mut chat = TerminalChat::start(&models, &[]);
    chat.press('p');
    chat.expect("/save");
    chat.press('u');
    chat.leave();
}

#[test]
fn without_history_nothing_is_written() {
    let models = Models::pair();
    let mut chat = TerminalChat::start(&models, &["--no-history"]);
    chat.submit("/method", &["the method is speculative"]);
    chat.press('c');
    chat.expect("Ctrl-C again");
    chat.expect(PROMPT);
    chat.press('c');
    chat.session.exp_eof().unwrap();
    assert!(!models.folder().join("state").exists());
}

#[test]
fn an_interrupted_answer_stays_in_the_conversation() {
    let models = Models::with_context(1 << 20);
    for method in ["autoregressive", "speculative"] {
        let mut chat = TerminalChat::start(&models, &["-n", "1000000", "--method", method]);
        for turn in 1..=2 {
            chat.enter("Hello");
            chat.wait_for_answer();
            chat.press('c');
            chat.expect("[interrupted; the text so far stays in the conversation]");
            chat.expect(PROMPT);
            let answers = format!("whole chat: {turn} answer");
            chat.submit("/stats", &[&answers]);
        }
        fs::remove_file(models.folder().join("chat.json")).unwrap_or_default();
        let messages = chat.messages(&models);
        assert_eq!(user_messages(&messages), ["Hello", "Hello"]);
        assert!(messages.iter().all(|(_, text)| !text.is_empty()), "{messages:?}");
        chat.leave();
    }
}

#[test]
fn turns_that_exceed_the_context_are_left_out_or_refused_with_a_note() {
    let models = Models::with_context(128);
    let mut chat = TerminalChat::start(&models, &["-n", "20"]);
    let end = "[stopped after 20 tokens";
    chat.submit("a question of thirty letters or so", &[end]);
    for _ in 0..3 {
        chat.submit(
            "a question of thirty letters or so",
            &["[the context is full: the oldest turn was left out]", end],
        );
    }
    let long = "x".repeat(200);
    chat.submit(&long, &["error: the message is too long by", "the model sees at most 128"]);
    chat.submit("short", &[end]);
    let messages = chat.messages(&models);
    assert_eq!(user_messages(&messages).len(), 5);
    assert!(!user_messages(&messages).contains(&&*long));
    chat.leave();
}

/// Creates a chat that reads its messages from a pipe.
fn piped(models: &Models, input: &str, options: &[&str]) -> Run {
    let run = Run::of("chat").with_path("--model", &models.target());
    let run = run.with_path("--draft-model", &models.drafter()).on_one_core();
    run.words("-n 30 --ignore-eos --temperature 0").with(options).input(input)
}

#[test]
fn the_text_does_not_depend_on_the_method() {
    let models = Models::with_context(4096);
    let fixed = ["--draft-tokens", "3"];
    let plain = piped(&models, "one\ntwo\nthree\n", &["--method", "autoregressive"]).succeed();
    let text = plain.output();
    assert!(text.len() > 90, "{text:?}");
    // Standard output has only answers, and no prompt is shown anywhere.
    assert!(!text.contains(PROMPT) && !plain.errors.contains(PROMPT), "{}", plain.errors);
    assert!(plain.errors.contains("the model has no chat template"), "{}", plain.errors);
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
fn options_change_during_a_chat() {
    let models = Models::pair();
    let lines =
        "/set parameter max-tokens 5\nHi\n/set\n/set top-p 7\n/set colour red\n/set system short\n";
    let finished = piped(&models, lines, &[]).succeed();
    for words in [
        "the next answer will have max-tokens 5",
        "[stopped after 5 tokens; /set max-tokens allows more]",
        "temperature 0, top-k 40, top-p 0.95,",
        "error: top_p is 7",
        "there is no option colour",
        "the next answer will have the new system message",
    ] {
        assert!(finished.errors.contains(words), "{words}: {}", finished.errors);
    }
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
    write("{% if messages|length > 1 %}x{% endif %}");
    refuse(file.to_str().unwrap(), &["the chat template has no text", "--chat-template"]);
    // A template that renders no text for some message, does not finish, or grows without bounds,
    // is reported, and the chat continues.
    write("{% if messages[0].content != 'a' %}x{% endif %}");
    let run = piped(&models, "a\n/reset\n", &["--chat-template", file.to_str().unwrap()]);
    let finished = run.succeed();
    assert!(finished.errors.contains("has no text for these messages"), "{}", finished.errors);
    assert!(finished.errors.contains("started a new conversation"), "{}", finished.errors);
    write(
        "{% if messages[0].content == 'a' %}{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}\
         {% endfor %}{% endfor %}{% endfor %}{% endif %}x",
    );
    let run = piped(&models, "a\n/reset\n", &["--chat-template", file.to_str().unwrap()]);
    let finished = run.succeed();
    assert!(finished.errors.contains("t.jinja cannot render"), "{}", finished.errors);
    assert!(finished.errors.contains("does not finish within"), "{}", finished.errors);
    assert!(finished.errors.contains("started a new conversation"), "{}", finished.errors);
    write(
        "{% set ns = namespace(s='ab') %}{% if messages[0].content == 'a' %}{% for i in range(60) %}\
         {% set ns.s = ns.s ~ ns.s %}{% endfor %}{% endif %}{{ ns.s }}",
    );
    let run = piped(&models, "a\n/reset\n", &["--chat-template", file.to_str().unwrap()]);
    let finished = run.succeed();
    assert!(finished.errors.contains("t.jinja cannot render"), "{}", finished.errors);
    assert!(finished.errors.contains("builds or reads more than"), "{}", finished.errors);
    assert!(finished.errors.contains("started a new conversation"), "{}", finished.errors);
    // If the template refuses a later message, the message is removed and the chat continues.
    write(
        "{% if messages|length > 1 %}{{ raise_exception('once') }}{% endif %}{{ messages[0].content }}",
    );
    let run = piped(&models, "a\nb\n/reset\nc\n", &["--chat-template", file.to_str().unwrap()]);
    let finished = run.succeed();
    assert!(finished.errors.contains("refuses these messages: once"), "{}", finished.errors);
    assert!(finished.errors.contains("started a new conversation"), "{}", finished.errors);
}
