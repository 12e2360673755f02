//! Tests of schemas without a model: which texts they allow, and that whatever they allow satisfies
//! them.

use crate::grammar::tests::{
    Dice, END, accepts, byte_level, check_texts, compiler, constraint, draw, schema,
};
use crate::grammar::{Grammar, GrammarCompiler};
use forerun_core::{TokenConstraint, TokenId};
use serde_json::{Value, json};

fn check(schema: &Value, accepted: &[&str], rejected: &[&str]) {
    check_texts(&Grammar::json_schema(schema), accepted, rejected);
}

fn error_of(text: &str) -> String {
    match compiler().constraint(&schema(text), &[END]) {
        Ok(_) => panic!("{text} must be an error"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn integers_of_64_bits_are_exact_at_any_depth() {
    let members = [
        i64::MIN.to_string(),
        (i64::MIN + 1).to_string(),
        (i64::MIN + 511).to_string(),
        (i64::MIN + 512).to_string(),
        "-9007199254740993".into(),
        "9007199254740993".into(),
        "1234567890123456789".into(),
        i64::MAX.to_string(),
        u64::MAX.to_string(),
    ];
    for member in &members {
        let other =
            format!("{}{}", &member[..member.len() - 1], if member.ends_with('9') { 8 } else { 9 });
        for text in [format!("{{\"const\":{member}}}"), format!("{{\"enum\":[\"x\",{member}]}}")] {
            check_texts(&schema(&text), &[member], &[&other]);
        }
        let deep = format!("{{\"const\":{{\"a\":[1,{{\"b\":{member}}}]}}}}");
        check_texts(
            &schema(&deep),
            &[&format!("{{\"a\":[1,{{\"b\":{member}}}]}}")],
            &[&format!("{{\"a\":[1,{{\"b\":{other}}}]}}")],
        );
        let bounds = format!("{{\"type\":\"integer\",\"minimum\":{member},\"maximum\":{member}}}");
        check_texts(&schema(&bounds), &[member], &[&other]);
    }
    check(
        &json!({"type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX}),
        &["0", "-1", "9223372036854775807", "-9223372036854775808"],
        &["9223372036854775808", "-9223372036854775809", "1.0", "01", "-0"],
    );
    check(
        &json!({"type": "integer", "exclusiveMinimum": 9_007_199_254_740_992_u64, "maximum": u64::MAX}),
        &["9007199254740993", "18446744073709551615"],
        &["9007199254740992", "18446744073709551616"],
    );
    for text in [
        r#"{"const":18446744073709551616}"#,
        r#"{"type":"integer","minimum":-9223372036854775809}"#,
        r#"{"properties":{"a":{"enum":[1,99999999999999999999]}}}"#,
    ] {
        assert!(error_of(text).contains("than JSON numbers keep"), "{}", error_of(text));
    }
    let lark = "start: \"x\" %json {\"const\": 9007199254740993}";
    check_texts(&Grammar::lark(lark), &["x9007199254740993"], &["x9007199254740992"]);
}

#[test]
fn numbers_without_a_bound_have_an_end() {
    let digits = |count: usize| "1".repeat(count);
    let (most, more) = (digits(16), digits(17));
    let negative = |text: &str| format!("-{text}");
    check(
        &json!({"type": "integer"}),
        &["0", &most, &negative(&most)],
        &[&more, &negative(&more), &digits(40)],
    );
    check(
        &json!({"type": "number"}),
        &[&most, &format!("-{most}.{most}e99"), &format!("0.{most}")],
        &[&more, &format!("0.{more}"), &negative(&more), "1e999"],
    );
    // A bound is one for its own direction.
    check(&json!({"type": "integer", "minimum": 0}), &["0", &most], &[&more, "-1"]);
    check(
        &json!({"type": "integer", "maximum": -5}),
        &["-5", &negative(&most)],
        &[&negative(&more)],
    );
    check(
        &json!({"type": "number", "exclusiveMinimum": -0.5}),
        &[&most, "-0.25", &format!("-0.{most}")],
        &[&more, &format!("0.{more}"), &format!("-0.{more}"), "-0.5"],
    );
    check(&json!({"type": "number", "multipleOf": 0.01}), &["19.99", &most], &[&more, "0.001"]);
    // What a bound or a multiple needs is possible.
    let long = 10_u64.pow(18);
    check(&json!({"type": "integer", "minimum": long}), &["1000000000000000001"], &["1"]);
    check(
        &json!({"type": "integer", "exclusiveMinimum": 9_999_999_999_999_999_u64}),
        &[&more],
        &[],
    );
    check(
        &json!({"type": "integer", "multipleOf": 10_u64.pow(16), "minimum": 1}),
        &["10000000000000000"],
        &["0", &most],
    );
    check(
        &json!({"type": "number", "minimum": 1e-20, "maximum": 3e-20}),
        &["0.00000000000000000002"],
        &["0.0000000000000001", &format!("0.{}", "0".repeat(30))],
    );
}

#[test]
fn multiples_are_exact_or_refused() {
    check(
        &json!({"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 30}),
        &["0", "7", "28", "-14"],
        &["1", "35", "-21", "-7.0"],
    );
    check(
        &json!({"type": "number", "multipleOf": 0.25}),
        &["0.5", "0.50", "1", "-1.25"],
        &["0.3", "1.1", "1.", "-0"],
    );
    check(
        &json!({"type": "integer", "multipleOf": 1_000_000, "maximum": 5_000_000}),
        &["0", "1000000", "-2000000", "5000000"],
        &["1", "100000", "6000000", "1500000"],
    );
    check(
        &json!({"type": "integer", "multipleOf": 1, "minimum": 3, "maximum": 4}),
        &["3", "4"],
        &["5"],
    );
    // All ranges against all numbers.
    for multiple in ["3", "7", "12", "0.5", "0.75", "2.5"] {
        for (minimum, maximum) in [
            (None, None),
            (Some("-7"), None),
            (Some("0"), None),
            (Some("13.5"), None),
            (Some("120"), None),
            (None, Some("-1")),
            (None, Some("35")),
            (Some("-120.5"), Some("9999")),
            (Some("10"), Some("29999")),
        ] {
            let bound = |keyword, value: Option<&str>| {
                value.map(|value| format!(",\"{keyword}\":{value}")).unwrap_or_default()
            };
            let (least, most) = (bound("exclusiveMinimum", minimum), bound("maximum", maximum));
            let text = format!("{{\"type\":\"number\",\"multipleOf\":{multiple}{least}{most}}}");
            let constraint = constraint(&compiler(), &schema(&text));
            let number = |text: &str| text.parse::<f64>().unwrap();
            for quarters in -600..600 {
                let value = f64::from(quarters) / 4.0;
                let expected = value % number(multiple) == 0.0
                    && minimum.is_none_or(|minimum| value > number(minimum))
                    && maximum.is_none_or(|maximum| value <= number(maximum));
                assert_eq!(accepts(&constraint, &value.to_string()), expected, "{value}: {text}");
            }
        }
    }
    check(
        &json!({"type": "array", "items": {"type": "integer", "multipleOf": 7}}),
        &["[7, 14]", "[\n  7,0]", "[]"],
        &["[1 4]", "[8]", "[7,]"],
    );
    check(
        &json!({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"}),
        &["12", "-24"],
        &["4", "6", "8"],
    );
    for multiple in ["2147483648", "123456789", "86400000", "1e-300", "0.0000001", "1e300"] {
        let error = error_of(&format!("{{\"type\":\"number\",\"multipleOf\":{multiple}}}"));
        assert!(error.contains("multipleOf"), "{error}");
    }
    for multiple in ["0", "-0.0", "\"a\""] {
        let error = error_of(&format!("{{\"type\":\"number\",\"multipleOf\":{multiple}}}"));
        assert!(error.contains("multipleOf"), "{error}");
    }
    assert!(
        error_of(r#"{"type":"integer","multipleOf":10,"minimum":1,"maximum":9}"#)
            .contains("no value")
    );
    assert!(
        error_of(r#"{"type":"integer","multipleOf":7,"minimum":1,"maximum":6}"#)
            .contains("no value")
    );
}

#[test]
fn schemas_beside_each_other_hold_together() {
    check(
        &json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}], "not": false}),
        &["3", "5"],
        &["2", "6", "\"a\""],
    );
    check(
        &json!({"$defs": {"a": {"minLength": 2}}, "$ref": "#/$defs/a", "type": "string", "maxLength": 3}),
        &["\"ab\"", "\"é→x\""],
        &["\"a\"", "\"abcd\"", "12"],
    );
    check(
        &json!({"enum": ["a", "bb", 3, null, [1], {"k": 1.0}], "minLength": 2, "maximum": 2, "maxItems": 0}),
        &["\"bb\"", "null", "{\"k\":1}"],
        &["\"a\"", "3", "[1]"],
    );
    check(
        &json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object",
            "properties": {"a": {"const": 1}, "b": {"const": 2}}, "additionalProperties": false}),
        &["{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"],
        &["{}"],
    );
    check(
        &json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "x"}, "n": {"type": "integer"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "y"}}, "required": ["kind"]},
        ]}),
        &["{\"kind\":\"x\",\"n\":1}", "{\"kind\":\"y\"}"],
        &["{\"kind\":\"x\",\"n\":\"a\"}", "{\"kind\":\"z\"}"],
    );
    let error = error_of(r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#);
    assert!(error.contains("oneOf"), "{error}");
    let many = json!({"enum": ["a", "b", 1, 2, null, true, "a\"b"], "type": ["string", "integer"]});
    check(&many, &["\"a\"", "2", r#""a\"b""#], &["null", "true", "3", "\"c\""]);
    check(
        &json!({"type": ["integer", "null"], "enum": [1, null, "x"]}),
        &["1", "null"],
        &["\"x\"", "2"],
    );
}

#[test]
fn objects_count_and_name_their_properties() {
    check(
        &json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
            "minProperties": 2, "maxProperties": 2, "additionalProperties": false}),
        &["{\"a\":null,\"c\":null}", "{\"b\":null,\"c\":null}"],
        &["{\"a\":null}", "{\"a\":null,\"b\":null,\"c\":null}", "{}"],
    );
    check(
        &json!({"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"},
            "maxProperties": 2}),
        &["{\"a\":1}", "{\"a\":1,\"b\":2}"],
        &["{}", "{\"a\":\"x\"}", "{\"a\":1,\"b\":2,\"c\":3}", "{\"b\":1}"],
    );
    // The names that match the pattern all have a schema of their own.
    check(
        &json!({"type": "object", "properties": {"ab": {"type": "integer"}},
            "patternProperties": {"^ab$": {"minimum": 5}}, "additionalProperties": false}),
        &["{}", "{\"ab\":5}"],
        &["{\"ab\":4}", "{\"ab\":5,", "{\"ab\":5,}"],
    );
    check(
        &json!({"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 3}},
            "additionalProperties": {"type": "null"}}),
        &["{\"x\":1}", "{\"xy\":3}", "{\"y\":\"a\"}", "{\"z\":null}"],
        &["{\"xy\":2}", "{\"x\":null}", "{\"z\":1}", "{\"y\":2}"],
    );
    check(
        &json!({"type": "object", "propertyNames": {"pattern": "^[a-c]+$", "maxLength": 2},
            "properties": {"toolong": {}}, "additionalProperties": {"type": "integer"}}),
        &["{}", "{\"ab\":1}"],
        &["{\"abc\":1}", "{\"d\":1}", "{\"toolong\":1}"],
    );
    check(
        &json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}}),
        &["{}", "{\"a\":null,\"b\":null}"],
        &["{\"c\":null}"],
    );
    check(
        &json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"const": 1}}),
        &["{\"any\":1}"],
        &["{\"any\":2}"],
    );
}

#[test]
fn objects_that_list_properties_have_no_others_unless_a_schema_opens_them() {
    let nothing = json!({"type": "null"});
    let listed = json!({"type": "object", "properties": {"a": nothing}});
    check(&listed, &["{}", "{\"a\":null}"], &["{\"b\":1}", "{\"a\":null,\"b\":1}"]);
    for (keyword, value) in [
        ("additionalProperties", json!(true)),
        ("additionalProperties", json!({"type": "integer"})),
        ("unevaluatedProperties", json!({})),
        ("propertyNames", json!({"maxLength": 1})),
        ("minProperties", json!(2)),
    ] {
        let mut opened = listed.clone();
        opened[keyword] = value;
        check(&opened, &["{\"a\":null,\"b\":1}"], &["{\"a\":1,\"b\":1}"]);
    }
    check(&json!({"type": "object", "required": ["a"]}), &["{\"a\":1,\"b\":1}"], &["{\"b\":1}"]);
    check(
        &json!({"type": "object", "properties": {"a": nothing}, "patternProperties": {"^x": nothing}}),
        &["{\"a\":null,\"xy\":null}", "{\"x\":null}"],
        &["{\"b\":null}", "{\"x\":1}"],
    );
    // Schemas that hold together list their properties together.
    check(
        &json!({"allOf": [listed, {"properties": {"b": nothing}}]}),
        &["{\"a\":null,\"b\":null}", "{\"b\":null}"],
        &["{\"c\":null}"],
    );
    check(&json!({"type": "array", "items": listed}), &["[{\"a\":null}]"], &["[{\"b\":null}]"]);
}

#[test]
fn what_forbids_nothing_is_no_error() {
    for keyword in [
        json!({"uniqueItems": false}),
        json!({"contains": {"type": "integer"}, "minContains": 0}),
        json!({"not": false}),
        json!({"if": {"type": "string"}}),
        json!({"dependentRequired": {}}),
        json!({"unevaluatedProperties": true}),
        json!({"format": "path"}),
        json!({"format": "int64"}),
        json!({"propertyNames": {}}),
        json!({"propertyNames": true}),
        json!({"title": "x", "x-own": {"a": [1]}, "discriminator": {"propertyName": "a"}}),
        json!({"minItems": 0, "minLength": 0, "minProperties": 0, "required": []}),
        json!({"minimum": null}),
    ] {
        if keyword.get("minimum").is_some() {
            assert!(error_of(&keyword.to_string()).contains("minimum"));
            continue;
        }
        check(&keyword, &["[1,1]", "\"a\"", "{\"a\":null}", "1"], &["", "nul"]);
    }
}

#[test]
fn references_are_read_as_they_are_written() {
    let definitions = json!({"a/b": {"const": 1}, "c~d": {"const": 2}, "e f%": {"const": 3}, "g": {"$anchor": "here", "const": 4}});
    for (reference, value) in [
        ("#/$defs/a~1b", "1"),
        ("#/$defs/c~0d", "2"),
        ("#/$defs/e%20f%25", "3"),
        ("#/%24defs/g", "4"),
        ("#here", "4"),
        ("https://example.com/s#here", "4"),
    ] {
        let schema =
            json!({"$id": "https://example.com/s", "$defs": definitions, "$ref": reference});
        check(&schema, &[value], &["0"]);
    }
    let list = json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"], "additionalProperties": false});
    check(&list, &["{\"next\":null}", "{\"next\":{\"next\":null}}"], &["{}", "{\"next\":1}"]);
    let endless =
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]});
    assert!(error_of(&endless.to_string()).contains("no value"));
    for (reference, expected) in [
        ("#/$defs/none", "refers to nothing"),
        ("other.json", "within the schema"),
        ("#%zz", "nothing"),
    ] {
        let error = error_of(&json!({"$ref": reference}).to_string());
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn patterns_are_found_within_strings() {
    let pattern = |pattern: &str, accepted: &[&str], rejected: &[&str]| {
        check(&json!({"type": "string", "pattern": pattern}), accepted, rejected);
    };
    pattern("b", &["\"abc\"", "\"b\""], &["\"a\""]);
    pattern("^a|b$", &["\"ax\"", "\"xb\""], &["\"xa\"", "\"bx\""]);
    pattern(r#"^[^a]\\"$"#, &[r#""b\\\"""#, r#""\n\\\"""#], &[r#""a\\\"""#]);
    pattern(r"^\d{2}/\w$", &["\"12/_\""], &["\"1/_\"", "\"١٢/_\""]);
    pattern(r"^[\x00-\x1f]$", &["\"\\u0001\"", "\"\\n\"", "\"\\u001F\""], &["\"a\""]);
    pattern("^.{2}$", &["\"→é\"", r#""\\\"""#], &["\"a\"", r#""\\""#]);
    for pattern in [r"\bword", "(?=a)b", "(", "x^y"] {
        let error = error_of(&json!({"type": "string", "pattern": pattern}).to_string());
        assert!(error.contains("the pattern"), "{error}");
    }
    let error = error_of(r#"{"type":"string","pattern":"^a$","minLength":2}"#);
    assert!(error.contains("no value"), "{error}");
}

#[test]
fn formats_are_those_of_the_specification() {
    for (format, accepted, rejected) in [
        ("date", &["2024-02-28", "1999-12-31"][..], &["2024-02-30", "2024-2-1", "2024-13-01"][..]),
        ("time", &["12:30:59Z", "00:00:00.25+01:30"], &["24:00:00Z", "12:30Z", "23:59:60Z"]),
        ("date-time", &["2024-02-28T12:30:59Z"], &["2024-02-28 12:30:59Z"]),
        ("duration", &["P1Y2M3DT4H", "PT5M", "P3W", "P4D"], &["P", "PT", "1Y", "P1Y2W"]),
        ("email", &["a.b+c@example.com"], &["a", "a@", "@b.c", "a..b@c.de"]),
        ("hostname", &["example.com", "a-1"], &["-a", "a-", "a..b"]),
        ("ipv4", &["127.0.0.1", "255.255.255.255"], &["256.1.1.1", "1.2.3", "01.2.3.4"]),
        (
            "ipv6",
            &["::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::1:2", "1:2:3:4:5::6"],
            &[":", "1:2", ":::", "1::2::3", "g::"],
        ),
        ("uuid", &["123e4567-e89b-12d3-a456-426614174000"], &["123e4567e89b12d3a456426614174000"]),
        (
            "uri",
            &["https://example.com/a?b=c", "mailto:a@b.c", "urn:isbn:1"],
            &["example.com", "//x", "http://"],
        ),
    ] {
        let quoted =
            |texts: &[&str]| texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>();
        let (accepted, rejected) = (quoted(accepted), quoted(rejected));
        let accepted: Vec<&str> = accepted.iter().map(|text| &**text).collect();
        let rejected: Vec<&str> = rejected.iter().map(|text| &**text).collect();
        check(&json!({"type": "string", "format": format}), &accepted, &rejected);
    }
}

#[test]
fn errors_name_the_place() {
    for (text, expected) in [
        (r#"{"properties":{"a/b":{"items":{"not":{}}}}}"#, "at /properties/a~1b/items: `not`"),
        (r#"{"properties":{"a":{"type":"text"}}}"#, "at /properties/a: there is no type \"text\""),
        (r#"{"anyOf":[{"if":true,"then":false}]}"#, "at /anyOf/0: `if`"),
        (r#"{"items":{"uniqueItems":true}}"#, "at /items: `uniqueItems`"),
        (r#"{"type":"array","minItems":-1}"#, "`minItems`"),
        (r#"{"required":"a"}"#, "`required`"),
        (r#"{"enum":1}"#, "`enum`"),
        (r#"{"enum":[]}"#, "no value"),
        (r#"{"type":"string","minLength":3,"maxLength":2}"#, "no value"),
        (r#"{"type":"object","required":["a"],"properties":{"a":false}}"#, "no value"),
        (r#"{"type":"object","required":["a"],"additionalProperties":false}"#, "no value"),
        (r#"{"type":"array","minItems":1,"items":false}"#, "no value"),
        (r#"{"allOf":[{"type":"string"},{"type":"null"}]}"#, "no value"),
    ] {
        let error = error_of(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Large schemas are compiled or refused.
#[test]
fn the_size_of_a_schema_has_a_bound() {
    let many = |count: usize| -> Value {
        (0..count).map(|index| (format!("name_{index}"), json!({"type": "integer"}))).collect()
    };
    let words: Vec<String> = (0..5_000).map(|index| format!("word {index}")).collect();
    let groups: Vec<Value> =
        (0..20).map(|n| json!({"anyOf": [{"required": [format!("a{n}")]}, {"required": [format!("b{n}")]}]})).collect();
    let nested = (0..100).fold(json!({}), |inner, _| json!({"type": "array", "items": inner}));
    for schema in [
        json!({"type": "object", "properties": many(4_000)}),
        json!({"type": "object", "properties": many(4_000), "minProperties": 2_000}),
        json!({"type": "object", "properties": many(50_000)}),
        json!({"enum": words}),
        json!({"type": "object", "allOf": groups}),
        json!({"type": "array", "maxItems": 1_000_000_000_000_u64, "items": nested}),
        json!({"type": "string", "minLength": u64::MAX}),
        json!({"type": "string", "maxLength": u64::MAX, "pattern": "(a|b|c){1,2000}x(.*y){40}"}),
        json!({"type": "number", "minimum": f64::MIN, "maximum": f64::MAX}),
        json!({"type": "number", "minimum": 5e-324, "exclusiveMaximum": 1e-300}),
    ] {
        let short: String = schema.to_string().chars().take(60).collect();
        let started = std::time::Instant::now();
        let outcome = match compiler().constraint(&Grammar::json_schema(&schema), &[END]) {
            Ok((_, constraint)) => {
                let answer = draw(&constraint, &mut Dice(5), 20);
                assert_eq!(constraint.error_of(&answer), None, "{short}");
                format!("{} tokens", answer.len())
            }
            Err(error) => error.to_string(),
        };
        println!("{short}: {:?}, {outcome}", started.elapsed());
        assert!(outcome.len() < 1_000, "{outcome}");
    }
}

/// Makes schemas at random.
struct Schemas<'a> {
    dice: &'a mut Dice,
}

impl Schemas<'_> {
    fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.dice.below(values.len())].clone()
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.dice.below(if depth == 0 { 6 } else { 8 }) {
            0 => Value::Null,
            1 => Value::Bool(self.dice.below(2) == 0),
            2 => json!(self.dice.below(12) as i64 - 4),
            3 => json!((self.dice.below(40) as f64 - 15.0) / 4.0),
            4 => self.one_of(&[
                json!(i64::MIN),
                json!(i64::MAX),
                json!(u64::MAX),
                json!(9_007_199_254_740_993_u64),
            ]),
            5 => json!(self.one_of(&["", "a", "ab", "é\"\\", "a\nb", "2024-01-31"])),
            6 => (0..self.dice.below(3)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let name =
                    |schemas: &mut Self| schemas.one_of(&["a", "b", "c c", "\u{1}"]).to_owned();
                (0..self.dice.below(3)).map(|_| (name(self), self.value(depth - 1))).collect()
            }
        }
    }

    fn schema(&mut self, depth: usize) -> Value {
        if self.dice.below(12) == 0 {
            return Value::Bool(self.dice.below(4) > 0);
        }
        let mut schema = json!({});
        for _ in 0..1 + self.dice.below(4) {
            self.add(&mut schema, depth);
        }
        schema
    }

    fn schemas(&mut self, depth: usize) -> Value {
        (0..1 + self.dice.below(3)).map(|_| self.schema(depth)).collect()
    }

    fn add(&mut self, schema: &mut Value, depth: usize) {
        let types = ["null", "boolean", "integer", "number", "string", "array", "object"];
        let small = |schemas: &mut Self| json!(schemas.dice.below(4));
        let number = |schemas: &mut Self| {
            json!((schemas.dice.below(60) as f64 - 25.0) / schemas.one_of(&[1.0, 1.0, 4.0, 10.0]))
        };
        let names = ["a", "b", "ab", "x\"y"];
        match self.dice.below(if depth == 0 { 16 } else { 30 }) {
            0..=3 => schema["type"] = json!(self.one_of(&types)),
            4 => schema["type"] = json!([self.one_of(&types[..3]), self.one_of(&types[3..])]),
            5 => schema["enum"] = (0..1 + self.dice.below(4)).map(|_| self.value(2)).collect(),
            6 => schema["const"] = self.value(2),
            7 => schema["minimum"] = number(self),
            8 => schema["maximum"] = number(self),
            9 => schema["exclusiveMinimum"] = number(self),
            10 => schema["exclusiveMaximum"] = number(self),
            11 => {
                schema["multipleOf"] =
                    json!(self.one_of(&[1.0, 2.0, 3.0, 7.0, 0.5, 0.1, 10.0, 100.0]));
            }
            12 => schema["minLength"] = small(self),
            13 => schema["maxLength"] = small(self),
            14 => {
                schema["pattern"] =
                    json!(self.one_of(&["a", "^a", "b$", "^[a-c]*$", "^.?$", "\\d+", "^(x|é)+$"]));
            }
            15 => {
                schema["format"] =
                    json!(self.one_of(&["date", "ipv4", "uuid", "time", "email", "path"]));
            }
            16 | 17 => schema["items"] = self.schema(depth - 1),
            18 => schema["prefixItems"] = self.schemas(depth - 1),
            19 => schema["minItems"] = small(self),
            20 => schema["maxItems"] = small(self),
            21 | 22 => {
                let name = self.one_of(&names);
                schema["properties"][name] = self.schema(depth - 1);
            }
            23 => schema["required"] = json!([self.one_of(&names)]),
            24 => schema["additionalProperties"] = self.schema(depth - 1),
            25 => {
                let pattern = self.one_of(&["^a", "b", "^[x-z]", "^$"]);
                schema["patternProperties"][pattern] = self.schema(depth - 1);
            }
            26 => schema["anyOf"] = self.schemas(depth - 1),
            27 => schema["allOf"] = self.schemas(depth - 1),
            28 => {
                let keyword = self.one_of(&["minProperties", "maxProperties"]);
                schema[keyword] = small(self);
            }
            _ => schema["$ref"] = json!(self.one_of(&["#/$defs/a", "#/$defs/b~1c"])),
        }
    }
}

/// Finishes the answers of random schemas, and checks them with another implementation.
/// `FORERUN_CASES` sets how many.
#[test]
fn answers_satisfy_random_schemas_and_always_end() {
    let cases =
        std::env::var("FORERUN_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300);
    let mut dice = Dice(2026);
    let compiler = compiler();
    let (mut finished, mut refused) = (0, 0);
    for case in 0..cases {
        let mut schemas = Schemas { dice: &mut dice };
        let mut schema = schemas.schema(3);
        if schema.is_object() {
            schema["$defs"] = json!({"a": schemas.schema(2), "b/c": schemas.schema(2)});
        }
        finished += usize::from(check_answers(&compiler, &schema, &mut dice, case, &mut refused));
    }
    println!("{finished} schemas with whole answers, {refused} refused, of {cases}");
    assert!(finished > cases / 3, "only {finished} of {cases}");
}

fn check_answers(
    compiler: &GrammarCompiler,
    schema: &Value,
    dice: &mut Dice,
    case: usize,
    refused: &mut usize,
) -> bool {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
    let constraint = match compiler.constraint(&Grammar::json_schema(schema), &[END]) {
        Ok((_, constraint)) => constraint,
        Err(error) => {
            *refused += 1;
            // What can be seen to satisfy the schema shows that there was a value.
            for value in [
                json!(null),
                json!(true),
                json!(0),
                json!(1),
                json!(""),
                json!("a"),
                json!([]),
                json!({}),
            ] {
                let is_no_value = error.to_string().contains("no value");
                assert!(
                    !is_no_value || !validator.is_valid(&value),
                    "{case}: {schema} allows {value}, but: {error}"
                );
            }
            return false;
        }
    };
    let mut any = false;
    for _ in 0..4 {
        let answer = draw(&constraint, dice, 150);
        // Nothing but the end means that the answer is stuck or complete.
        assert_eq!(
            constraint.error_of(&answer),
            None,
            "{case}: {schema} is stuck after {:?}",
            text_of(&answer)
        );
        if let Some((&END, text)) = answer.split_last() {
            let text = text_of(text);
            // The other implementation reads longer numbers as other ones.
            let digits = text.split(|digit: char| !digit.is_ascii_digit() && digit != '.');
            if digits.map(str::len).max() > Some(15) {
                continue;
            }
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("{case}: {schema}: {text:?} is no JSON: {error}"));
            assert!(validator.is_valid(&value), "{case}: {schema} does not allow {text}");
            any = true;
        }
    }
    any
}

fn text_of(answer: &[TokenId]) -> String {
    byte_level().decode(answer)
}

/// A model that always takes the first token it may take gets to an end, too, or writes on within a
/// string or number.
#[test]
fn nothing_is_allowed_that_cannot_be_completed() {
    for schema in [
        json!({"type": "object", "properties": {"ab": {"type": "null"}}, "patternProperties": {"^ab$": {}}, "additionalProperties": false}),
        json!({"type": "array", "items": {"type": "string", "pattern": "^a$", "minLength": 2}}),
        json!({"type": "object", "properties": {"a": {"allOf": [{"type": "null"}, {"type": "string"}]}}, "additionalProperties": false}),
        json!({"type": "array", "prefixItems": [{"type": "null"}, false], "maxItems": 3}),
        json!({"type": "object", "additionalProperties": {"type": "integer", "minimum": 2, "exclusiveMaximum": 3, "multipleOf": 5}}),
    ] {
        let constraint = constraint(&compiler(), &Grammar::json_schema(&schema));
        for seed in 0..20 {
            let answer = draw(&constraint, &mut Dice(seed), 60);
            assert_eq!(answer.last(), Some(&END), "{schema}: {}", text_of(&answer));
            assert!(
                constraint.allowed(&answer).is_some() && constraint.error_of(&answer).is_none()
            );
        }
    }
}
