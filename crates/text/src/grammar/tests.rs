//! Tests of grammars without a model: which texts they allow, and that masks follow from the
//! prefix.

use super::vocabulary::Vocabulary;
use super::*;
use crate::tokenizer::Tokenizer;
use forerun_core::{TokenConstraint, TokenId, TokenMask};
use forerun_formats::checkpoint::random::byte_pair_tokenizer;
use llguidance::toktrie::TokenizerEnv;
use std::path::Path;
use std::sync::Arc;

const VOCAB: usize = 600;
pub(super) const END: TokenId = 257;

/// Returns a byte-level tokenizer: the bytes, BOS, EOS, and pairs.
pub(super) fn byte_level() -> Arc<Tokenizer> {
    tokenizer(&byte_pair_tokenizer(VOCAB))
}

fn tokenizer(json: &Value) -> Arc<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    Arc::new(Tokenizer::from_checkpoint(folder.path()).unwrap())
}

pub(super) fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(byte_level(), VOCAB)
}

pub(super) fn constraint(compiler: &GrammarCompiler, grammar: &Grammar) -> Arc<GrammarConstraint> {
    compiler.constraint(grammar, &[END]).unwrap_or_else(|error| panic!("{grammar:?}: {error}")).1
}

/// Returns whether the bytes of a text are allowed one after another, and then the end.
pub(super) fn accepts(constraint: &GrammarConstraint, text: &str) -> bool {
    let bytes: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
    let allows = |at: usize, token| {
        constraint.allowed(&bytes[..at]).is_some_and(|mask: TokenMask| mask.allows(token))
    };
    (0..bytes.len()).all(|at| allows(at, bytes[at])) && allows(bytes.len(), END)
}

pub(super) fn check_texts(grammar: &Grammar, accepted: &[&str], rejected: &[&str]) {
    let constraint = constraint(&compiler(), grammar);
    for text in accepted {
        assert!(accepts(&constraint, text), "{grammar:?} must accept {text:?}");
    }
    for text in rejected {
        assert!(!accepts(&constraint, text), "{grammar:?} must reject {text:?}");
    }
}

pub(super) fn schema(text: &str) -> Grammar {
    Grammar::new(GrammarKind::JsonSchema, text)
}

#[test]
fn json_schemas_allow_their_values() {
    let person = r##"{
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 5},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            "next": {"$ref": "#"}
        },
        "required": ["name", "age"],
        "additionalProperties": false
    }"##;
    check_texts(
        &schema(person),
        &[
            r#"{"name":"Ada","age":36}"#,
            "{\n  \"name\": \"Zoë\",\n  \"age\": 7,\n  \"tags\": [\"a\", \"b\"]\n}",
            r#"{"name":"A","age":1,"next":{"name":"B","age":120,"tags":[]}}"#,
        ],
        &[
            "",
            "{}",
            r#"{"age":36,"name":"Ada"}"#,
            r#"{"name":"","age":36}"#,
            r#"{"name":"Ada","age":121}"#,
            r#"{"name":"Ada","age":36,"more":1}"#,
            r#"{"name":"Ada","age":36,"tags":["c"]}"#,
            r#"{"name":"Ada","age":36"#,
            r#"{"name":"Ada","age":36}}"#,
        ],
    );
    check_texts(&Grammar::json_object(), &["{}", r#"{"a": [1, null, {"b": "c"}]}"#], &["[]", "1"]);
    check_texts(&schema("true"), &["{}", "[1]", "\"\\n\"", "-1.5e3", "null"], &["nul", "01"]);
    // A run of spaces ends.
    let indent = |breaks, spaces| format!("{{{}{}}}", "\n".repeat(breaks), " ".repeat(spaces));
    let allowed = [indent(0, 1), indent(1, 0), indent(2, 20)];
    let refused = [indent(0, 2), indent(3, 0), indent(1, 21)];
    check_texts(
        &Grammar::json_object(),
        &allowed.each_ref().map(|text| &**text),
        &refused.each_ref().map(|text| &**text),
    );
}

#[test]
fn regular_expressions_match_the_whole_text() {
    check_texts(
        &Grammar::regex(r"[0-9]{4}-\d\d"),
        &["2024-07"],
        &["2024-7", "x2024-07", "2024-071"],
    );
    check_texts(&Grammar::regex("^(yes|no)$"), &["yes", "no"], &["^yes", "yes$", "maybe"]);
    check_texts(&Grammar::regex(r"a\$"), &["a$"], &["a", r"a\"]);
    check_texts(&Grammar::regex("[^/]+/é*"), &["a/", "ab/éé"], &["/", "a", "a//"]);
    let choice = Grammar::choice(&["a", "a+b", "\"/\n\\", "→"]);
    check_texts(&choice, &["a", "a+b", "\"/\n\\", "→"], &["", "a+", "aab", "ab", "a|a+b"]);
}

#[test]
fn lark_grammars_allow_their_texts() {
    let sum = "start: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/\n%ignore / +/";
    check_texts(&Grammar::lark(sum), &["1", "1+22", "1 + 2"], &["", "+", "1+", "1 2"]);
    let call = "start: \"<call>\" json \"</call>\"\njson: %json {\"type\":\"object\",\"properties\":\
                {\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"],\"additionalProperties\":false}";
    check_texts(
        &Grammar::lark(call),
        &["<call>{\"x\":1}</call>"],
        &["<call>{}</call>", "{\"x\":1}"],
    );
}

#[test]
fn a_format_may_follow_the_rest_of_a_reasoning() {
    let syntax: crate::ChatSyntax = "hermes".parse().unwrap();
    let after = |format: &Grammar, end| syntax.format_after_reasoning(format, end, &byte_level());
    let grammar = after(&Grammar::regex("[0-9]+"), "assistant:<think>\n").unwrap();
    check_texts(
        &grammar,
        &["</think>1", "Hm.</think>\n\n12", "a < b</thi\n</think> 1"],
        &["1", "Hm. 1", "Hm.</think>", "Hm.</think>x", "</think>1</think>1"],
    );
    let tool = crate::Tool {
        name: "f".into(),
        description: None,
        parameters: serde_json::json!({"type": "object", "properties": {}}),
    };
    let calls = |end| syntax.grammar(std::slice::from_ref(&tool), false, end, &byte_level());
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let thought = format!("Hm.</think>\n\n{call}");
    check_texts(&calls("<think>"), &[&thought], &[call]);
    check_texts(&calls(""), &[call], &[&thought]);
    assert_eq!(after(&Grammar::regex("[0-9]+"), "assistant:"), None);
    assert_eq!(after(&Grammar::gbnf("root ::= \"a\""), "<think>"), None);
}

#[test]
fn gbnf_grammars_allow_their_texts() {
    // llama.cpp's grammar of JSON, and parts of others.
    let json = r##"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"##;
    check_texts(
        &Grammar::gbnf(json),
        &["{}", "{\"a\": [1, -2.5e3, \"é\\u00e9\\n\"]}", "{ \"b\":null, \"c\":true}"],
        &["[]", "{\"a\"}", "{\"a\":1,}", "{\"a\":\"\u{1}\"}", "{\"a\":01}"],
    );
    let arithmetic = r##"root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"##;
    check_texts(
        &Grammar::gbnf(arithmetic),
        &["1+2=3\n", "(a_1 -2)*x = y\n\n1=1\n"],
        &["1+2", "1+=3\n", "_a=1\n", "(1=1\n"],
    );
    // A lexer would take the longest of these parts, and reject the texts.
    let ambiguous = "root ::= [a-z]+ \"foo\" x\nx::=\"\"|\"o\"{2,}";
    check_texts(
        &Grammar::gbnf(ambiguous),
        &["foxfoo", "foofoofoo", "afooooo", "foofoo"],
        &["foo", "foofooo1", "fofo"],
    );
    let escapes = "root ::= \"\\x41\\u00e9\\U0001F600\" [\\]\\-a-c-] . [^x]?";
    check_texts(&Grammar::gbnf(escapes), &["Aé😀]→", "Aé😀-xy", "Aé😀b\n"], &["Aé😀d→", "Aé😀a"]);
    let counts = "root ::= ( a | \"b\" ){2} \"c\"{0,1} # a comment\r\na ::= \"a\" |\n  \"A\"";
    check_texts(&Grammar::gbnf(counts), &["ab", "bAc"], &["a", "abb", "abcc"]);
    let left = "root ::= root \"+\" digit | digit\ndigit ::= [0-9]";
    check_texts(&Grammar::gbnf(left), &["1", "1+2+3"], &["1+", "12"]);
    assert_eq!(Grammar::guess(json).kind(), GrammarKind::Gbnf);
    assert_eq!(Grammar::guess("start: \"::=\" # a ::= b").kind(), GrammarKind::Lark);
}

#[test]
fn errors_name_the_problem() {
    let deep_json = "[".repeat(5_000) + &"]".repeat(5_000);
    let nested =
        |open: &str, close: &str, count| open.repeat(count) + "\"a\"" + &close.repeat(count);
    let table = [
        (schema(""), "empty"),
        (schema("{"), "EOF"),
        (schema("[]"), "a schema is an object"),
        (schema("false"), "no value"),
        (schema(&deep_json), "recursion limit"),
        (schema(r#"{"x-guidance": {"lenient": true}}"#), "x-guidance"),
        (schema(r#"{"type": "text"}"#), "text"),
        (schema(r##"{"$ref": "#/$defs/none"}"##), "none"),
        (schema(r##"{"$ref": "https://example.com/schema"}"##), "example.com"),
        (schema(r#"{"not": {"type": "string"}}"#), "not"),
        (schema(r#"{"type": "string", "pattern": "a\\Bc"}"#), "boundaries"),
        (schema(r#"{"type": "integer", "minimum": 2, "maximum": 1}"#), "no value"),
        (schema(&format!("{{\"const\": \"{}\"}}", "a".repeat(1 << 20))), "bytes"),
        (Grammar::regex("(a"), "unclosed group"),
        (Grammar::regex("a(?=b)"), "look-around"),
        (Grammar::regex("((((a{1,900}){1,900}){1,900}){1,900}"), ""),
        (Grammar::lark("a: \"b\""), "start"),
        (Grammar::lark("start: b"), "b"),
        (Grammar::lark("start: \"a"), ""),
        (Grammar::lark("start: start"), ""),
        (Grammar::lark(format!("start: {}", "\"a\" | ".repeat(1 << 15))), "bytes"),
        (Grammar::gbnf("root: \"a\""), "line 1: expected `::=` after \"root\", found ':'"),
        (Grammar::gbnf("a ::= \"b\""), "no rule \"root\""),
        (Grammar::gbnf("root ::= \"b\"\n\n  other"), "line 3"),
        (Grammar::gbnf("root ::= a\nroot ::= a"), "line 2: the rule \"root\" is defined twice"),
        (Grammar::gbnf("root ::= a b\na ::= \"\""), "line 1: there is no rule \"b\""),
        (Grammar::gbnf("root ::= \"a"), "does not end"),
        (Grammar::gbnf("root ::= [a"), "does not end"),
        (Grammar::gbnf("root ::= []"), "is empty"),
        (Grammar::gbnf("root ::= [z-a]"), "range"),
        (Grammar::gbnf("root ::= \"\\q\""), "`\\q`"),
        (Grammar::gbnf("root ::= \"\\uD800\""), "no character"),
        (Grammar::gbnf("root ::= (\"a\""), "`)`"),
        (Grammar::gbnf("root ::= \"a\")"), "')'"),
        (Grammar::gbnf("root ::= \"a\"{3,2}"), "repeats nothing"),
        (Grammar::gbnf("root ::= \"a\"{99999}"), "99999"),
        (Grammar::gbnf("root ::= <think>"), "not supported"),
        (Grammar::gbnf(format!("root ::= {}", nested("(", ")", 30_000))), "nested"),
    ];
    let compiler = compiler();
    for (grammar, expected) in table {
        let short: String = grammar.text().chars().take(80).collect();
        let Err(error) = compiler.constraint(&grammar, &[END]) else {
            panic!("{short} must be an error");
        };
        let message = error.to_string();
        let kind = grammar.kind();
        assert!(message.starts_with(&format!("the {kind} cannot be used: ")), "{message}");
        assert!(message.contains(expected), "{short}: {message}");
        assert!(message.len() < 2_000 && !message.contains("backtrace"), "{short}: {message}");
    }
}

/// None of them takes long, or much memory, whether it is an error or not.
#[test]
fn hostile_grammars_are_answers_or_errors() {
    let nested =
        |open: &str, close: &str, count| open.repeat(count) + "\"a\"" + &close.repeat(count);
    let chain = |count: usize| {
        let rules: String = (0..count).map(|n| format!("a{n}:a{}\n", n + 1)).collect();
        format!("start:a0\n{rules}a{count}:\"a\"\n")
    };
    let terminals = |count: usize| {
        let rules: String = (0..count).map(|n| format!("A{n}:A{}\"\"\n", n + 1)).collect();
        format!("start:A0\n{rules}A{count}:\"a\"\n")
    };
    let doubling: String = (0..40).map(|n| format!("a{n}: a{} a{}\n", n + 1, n + 1)).collect();
    let all_of: Vec<String> = (0..12)
        .map(|n| format!(r#"{{"anyOf":[{{"required":["a{n}"]}},{{"required":["b{n}"]}}]}}"#))
        .collect();
    let grammars = [
        Grammar::lark(format!("start: {}", nested("(", ")", 20_000))),
        Grammar::lark(format!("start: {}", nested("[", "]", 20_000))),
        Grammar::lark(chain(9_000)),
        Grammar::lark(terminals(7_500)),
        Grammar::lark(format!("start: a0\n{doubling}a40: \"a\"")),
        Grammar::lark("start: a*\na: b*\nb: \"x\"*"),
        Grammar::lark("start: (((\"a\"{1,9999}){1,9999}){1,9999}){1,9999}"),
        Grammar::gbnf("root ::= (((\"a\"{9999}){9999}){9999}){9999}"),
        Grammar::regex(format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000))),
        Grammar::regex("(a?){2000}(a){2000}"),
        Grammar::regex("(.*a){30}"),
        Grammar::regex(r"(\w{5,300}\s){1,300}x(\w{5,300}\s){1,300}"),
        Grammar::regex(r"(?i)\p{L}{1,500}(\p{Lu}|\p{Ll}){1,500}"),
        schema(&format!(r#"{{"type":"object","allOf":[{}]}}"#, all_of.join(","))),
        schema(r#"{"type":"string","minLength":1000000,"maxLength":100000000}"#),
        schema(r#"{"type":"array","minItems":1000000,"items":{}}"#),
        schema(r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}"##),
        schema(r##"{"allOf":[{"$ref":"#"}]}"##),
        schema(
            r##"{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}"##,
        ),
    ];
    let compiler = compiler();
    for grammar in grammars {
        let short: String = grammar.text().chars().take(60).collect();
        let started = std::time::Instant::now();
        let outcome = match compiler.constraint(&grammar, &[END]) {
            Err(error) => error.to_string(),
            Ok((_, constraint)) => {
                // The mask after a long answer is found or refused as well.
                let mut answer = Vec::new();
                while answer.len() < 50 {
                    let mask = constraint.allowed(&answer);
                    match mask.and_then(|mask| mask.tokens().next()) {
                        Some(token) if token != END => answer.push(token),
                        _ => break,
                    }
                }
                format!("{} tokens", answer.len())
            }
        };
        println!("{short}: {:?}, {outcome}", started.elapsed());
        assert!(outcome.len() < 2_000, "{outcome}");
    }
}

/// A generator of random numbers.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

fn grammars() -> Vec<Grammar> {
    vec![
        Grammar::json_object(),
        schema(
            r##"{"type":"object","properties":{"kind":{"enum":["leaf","node"]},
            "children":{"type":"array","items":{"$ref":"#"},"maxItems":3},
            "date":{"type":"string","format":"date"}},"required":["kind"]}"##,
        ),
        Grammar::regex(r"(\w+ ){2,5}[.!?]"),
        Grammar::gbnf("root ::= (\"(\" root \")\" | [a-f]+ | \"é→\") (\",\" root)?"),
        Grammar::lark(
            "start: item+\nitem: \"if\" NAME | NAME \";\"\nNAME: /[a-z]+/\n%ignore \" \"",
        ),
    ]
}

/// Draws an answer that the grammar allows. Closing characters are more probable, so that some
/// answers end.
pub(super) fn draw(constraint: &GrammarConstraint, dice: &mut Dice, length: usize) -> Vec<TokenId> {
    let mut answer = Vec::new();
    while answer.len() < length {
        let mask = constraint.allowed(&answer).unwrap();
        let tokens: Vec<TokenId> = mask.tokens().collect();
        let closing = tokens.iter().find(|&&token| b"\"}],".contains(&(token.min(255) as u8)));
        let token = match closing {
            Some(&closing) if dice.below(3) == 0 => closing,
            _ => tokens[dice.below(tokens.len())],
        };
        answer.push(token);
        if token == END {
            break;
        }
    }
    answer
}

/// A mask depends on the prefix alone, however the constraint got there.
#[test]
fn masks_follow_from_the_prefix() {
    let compiler = compiler();
    let mut dice = Dice(7);
    for grammar in grammars() {
        let walked = constraint(&compiler, &grammar);
        let answers: Vec<_> = (0..6).map(|_| draw(&walked, &mut dice, 40)).collect();
        let jumping = constraint(&compiler, &grammar);
        for _ in 0..150 {
            let answer = &answers[dice.below(answers.len())];
            let mut prefix = answer[..dice.below(answer.len() + 1)].to_vec();
            if dice.below(4) == 0 {
                // A token that the grammar may forbid.
                prefix.push(dice.below(VOCAB) as TokenId);
            }
            let fresh = constraint(&compiler, &grammar).allowed(&prefix);
            assert_eq!(jumping.allowed(&prefix), fresh, "{grammar:?} after {prefix:?}");
            if dice.below(8) == 0 {
                // The forced tokens are allowed one after another, and looking for them changes
                // nothing.
                let forced = jumping.forced(&prefix, 5);
                for at in 0..forced.len() {
                    let before = [&prefix[..], &forced[..at]].concat();
                    assert!(jumping.allowed(&before).unwrap().allows(forced[at]), "{before:?}");
                }
                assert_eq!(jumping.allowed(&prefix), fresh);
            }
        }
    }
}

/// A token is allowed if and only if the grammar reads it.
#[test]
fn masks_hold_exactly_the_tokens_that_can_follow() {
    let compiler = compiler();
    let mut dice = Dice(11);
    for grammar in grammars() {
        let constraint = constraint(&compiler, &grammar);
        let answer = draw(&constraint, &mut dice, 12);
        let end = answer.iter().position(|&token| token == END).unwrap_or(answer.len());
        for at in [0, end / 2, end] {
            let mask = constraint.allowed(&answer[..at]).unwrap();
            for token in (0..VOCAB as TokenId).filter(|&token| token != END) {
                let longer = [&answer[..at], &[token]].concat();
                let can_follow = constraint.allowed(&longer).is_some();
                assert_eq!(mask.allows(token), can_follow, "{grammar:?}, {longer:?}");
            }
        }
    }
}

#[test]
fn threads_share_a_constraint() {
    let compiler = compiler();
    let grammar = &grammars()[1];
    let alone = constraint(&compiler, grammar);
    let answer = draw(&alone, &mut Dice(3), 30);
    let masks: Vec<_> = (0..=answer.len()).map(|at| alone.allowed(&answer[..at])).collect();
    let shared = constraint(&compiler, grammar);
    std::thread::scope(|scope| {
        for step in [1, 3, 7, 11] {
            let (shared, answer, masks) = (&shared, &answer, &masks);
            scope.spawn(move || {
                for round in 0..60 {
                    let at = round * step % masks.len();
                    assert_eq!(shared.allowed(&answer[..at]), masks[at]);
                }
            });
        }
    });
}

#[test]
fn forced_tokens_spell_what_must_follow() {
    let grammar = schema(
        r#"{"type":"object","properties":{"temperature":{"type":"integer"}},
        "required":["temperature"],"additionalProperties":false}"#,
    );
    let constraint = constraint(&compiler(), &Grammar::regex("abcdefgh[0-9]"));
    let text = |tokens: &[TokenId]| byte_level().decode(tokens);
    // The last token might be another one together with the digit.
    assert_eq!(text(&constraint.forced(&[], 100)), "abcdefg");
    assert_eq!(constraint.forced(&[], 2).len(), 2);
    assert_eq!(text(&constraint.forced(&[TokenId::from(b'a')], 100)), "bcdefg");
    assert!(constraint.forced(&[TokenId::from(b'x')], 100).is_empty());
    assert!(constraint.forced(&[END], 100).is_empty());
    let constraint = self::constraint(&compiler(), &grammar);
    let open: Vec<TokenId> = b"{\"".map(TokenId::from).to_vec();
    assert!(text(&constraint.forced(&open, 100)).starts_with("temperature"));
}

#[test]
fn an_answer_needs_an_end() {
    let compiler = compiler();
    let any = Grammar::regex("[ab]");
    assert_eq!(compiler.constraint(&any, &[]).err(), Some(GrammarError::NoEnd));
    // A token with text, and one that the model does not have.
    assert_eq!(compiler.constraint(&any, &[97, 9_999]).err(), Some(GrammarError::NoEnd));
    let (_, constraint) = compiler.constraint(&any, &[97, END, 256]).unwrap();
    assert_eq!(constraint.allowed(&[97]), Some(TokenMask::of([256, END])));
    assert_eq!(constraint.allowed(&[97, END, 5]), Some(TokenMask::of([256, END])));
    assert_eq!(constraint.error_of(&[97, END]), None);
}

#[test]
fn a_name_appears_once_in_an_object() {
    check_texts(
        &Grammar::json_object(),
        &[
            r#"{"a":1,"b":{"a":2},"c":[{"a":1},{"a":1}],"ab":"a"}"#,
            r#"{"a":"\\",",a":"\\"}"#,
            r#"{"a\nb":1,"a":2}"#,
        ],
        &[
            r#"{"a":1,"a":2}"#,
            r#"{"b":[{"a":1,"b":1,"a":1}]}"#,
            r#"{"\n":1,"\u000A":2}"#,
            r#"{"a":{"b":1},"a":2}"#,
        ],
    );
    // There are only two names. A third member is possible all the same, so that an answer does not
    // get stuck.
    let two = r#"{"type":"object","propertyNames":{"pattern":"^[ab]$"},"additionalProperties":{"type":"null"}}"#;
    check_texts(
        &schema(two),
        &[r#"{"a":null,"b":null}"#, r#"{"b":null,"a":null,"b":null}"#],
        &[r#"{"c":null}"#],
    );
}

/// The model has no token for a byte that the grammar requires.
#[test]
fn a_dead_end_is_an_error_of_the_answer() {
    let mut json = byte_pair_tokenizer(258);
    for character in ["}", "~"] {
        json["model"]["vocab"].as_object_mut().unwrap().remove(character);
    }
    let compiler = GrammarCompiler::new(tokenizer(&json), 258);
    let constraint = constraint(&compiler, &Grammar::regex("ab[}~]"));
    let answer: [TokenId; 2] = [97, 98];
    assert_eq!(constraint.allowed(&answer[..1]), Some(TokenMask::of([98])));
    // The answer ends, and says why.
    assert_eq!(constraint.allowed(&answer), Some(TokenMask::of([END])));
    let error = constraint.error_of(&[97, 98, END]).unwrap().to_string();
    assert!(error.contains("after 2 tokens") && error.contains("no token of the model"), "{error}");
    let error = compiler.constraint(&Grammar::regex("[}~]"), &[END]).err().unwrap().to_string();
    assert!(error.contains("no token of the model"), "{error}");
}

#[test]
fn specifications_compile_again() {
    use forerun_core::CompileConstraint;
    let (text, first) = compiler().constraint(&Grammar::choice(&["ab", "ac"]), &[END]).unwrap();
    let second = CompileConstraint::compile(&compiler(), &text).unwrap();
    for answer in [&[][..], &[97], &[97, 98], &[98]] {
        assert_eq!(first.allowed(answer), second.allowed(answer));
    }
    assert!(CompileConstraint::compile(&compiler(), "{}").is_err());
}

/// The bytes of each token are those of its text, in every kind of tokenizer here.
#[test]
fn bytes_of_tokens_are_those_of_their_texts() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let demonstration = Tokenizer::from_checkpoint(&models.join("target")).unwrap();
    let llama2c = crate::tokenizer::llama2c::tests::example().unwrap();
    for tokenizer in [&*byte_level(), &demonstration, &llama2c] {
        let size = tokenizer.vocab_size();
        let vocabulary = Vocabulary::new(tokenizer, size).unwrap();
        let mut compared = 0;
        for token in 0..size as TokenId {
            if !vocabulary.has_text(token) {
                // A special token, or a byte of no character.
                let text = tokenizer.decode(&[token]);
                assert!(["", "\u{FFFD}"].contains(&&*text), "{token}: {text:?}");
                continue;
            }
            let bytes = vocabulary.tok_trie().token(token);
            if let Ok(text) = std::str::from_utf8(bytes) {
                assert_eq!(tokenizer.piece(token), text, "{token}");
                compared += 1;
            }
        }
        assert!(compared > size / 3, "{compared} of {size}");
    }
}

#[test]
fn tokenizers_without_bytes_are_errors() {
    let with_decoder = |decoder: &str| {
        let mut json = byte_pair_tokenizer(300);
        json["decoder"] = serde_json::from_str(decoder).unwrap();
        tokenizer(&json)
    };
    for (decoder, expected) in [
        ("null", "no decoder"),
        (r###"{"type":"WordPiece","prefix":"##","cleanup":true}"###, "WordPiece"),
        (r#"{"type":"Replace","pattern":{"Regex":"a"},"content":"b"}"#, "a pattern"),
    ] {
        let compiler = GrammarCompiler::new(with_decoder(decoder), 300);
        let error = compiler.constraint(&Grammar::json_object(), &[END]).err().unwrap();
        let message = error.to_string();
        assert!(message.contains(expected) && message.contains("tokenizer.json"), "{message}");
    }
}
