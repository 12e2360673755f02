"""Random JSON schemas, regular expressions and grammars: those that clients write, and those that no one should."""

import json


class Raw(str):
    """A piece of JSON that is written as it is."""


class Pairs(list):
    """An object as a list of pairs, which may have a key twice."""


def encode(value, ascii=False):
    """Returns the JSON of a value that may contain `Raw` and `Pairs`."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, (dict, Pairs)):
        pairs = value.items() if isinstance(value, dict) else value
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=ascii)}: {encode(item, ascii)}" for key, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(encode(item, ascii) for item in value) + "]"
    return json.dumps(value, ensure_ascii=ascii)


# Integers at which f64, i64 and u64 end.
EDGES = [2**31, 2**32, *[2**53, 2**63] * 3, *[2**64] * 2, 10**18, 10**19, 10**20, 10**30, 10**100]
DECIMALS = [
    "0.0", "-0", "-0.0", "1.0", "1E2", "0.1", "0.5", "-1.5", "0.3333", "1e-7", "1e-300", "5e-324", "1e308", "1e400", "-1e400",
    "1e19", "1.5e3", "123456789.123456789", "0.1000000000000000055511151231257827", "9007199254740993.0", "9223372036854775808.0",
    "-9223372036854775809", "18446744073709551615.5", "12345678901234567890123456789.5", "1e-400"
]
STEPS = [
    1, 2, 3, 5, 7, 10, 12, 60, 100, 1000, 3600, 65536, 86_400_000, 123_456_789, 2**31, 2**53 + 1, 2**63, 10**30, 0, -2,
    Raw("0.1"),
    Raw("0.5"),
    Raw("0.25"),
    Raw("0.01"),
    Raw("0.3"),
    Raw("1.5"),
    Raw("1e-9"),
    Raw("1e-300"),
    Raw("3.14159"),
    Raw("1e300"),
    Raw("0.0000001"),
    Raw("2.0"),
    Raw("1e10")
]
NAMES = [
    "a", "b", "c", "name", "id", "x-y", "a/b", "a~b", "a%b", "ü", "a b", "", "\"", "$ref", "type", "名", "_1", "A", "aa", "é\n",
    "😀"
]
TEXTS = [
    "", "a", "red", "blue", "x y", "ü", "名前", "😀", "\"quoted\"", "back\\slash", "line\nbreak", "\t", "null", "1", "é", "\u2028",
    "</s>", "a" * 50, "\x7f", "\u0000"
]
FORMATS = [
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference", "regex",
    "json-pointer", "path", "int32", "int64", "double", "binary", "byte", "password", "color", "iri", "idn-email",
    "unknown-format", "", "relative-json-pointer"
]
PATTERNS = [
    "^[a-z]{1,5}$", "^a", "b$", "[0-9]", "^(red|blue)$", "^\\d{2,4}$", "^[A-Z][a-z]*$", "^x?$", "^$", "", ".", "^.{3}$", "^[^a]$",
    "^[a-z]+(-[a-z]+)*$", "\\w+", "^\\s?$", "\\.", "^(?:a|b){1,3}$", "^[\\u00e0-\\u00ff]$", "^[ab]{2}|c$", "^\\+?[0-9]{1,3}$",
    "a|b", "^a{0,3}b{1,2}$"
]
ODD_PATTERNS = [
    "(", "[", "*", "a{2,1}", "^(?=a)b$", "(?!a).*", "^(a)\\1$", "(?<=x)y", "\\p{L}+", "\\p{Nope}", "(a*)*b", "(.*a){30}",
    "(a|aa)+$", "((a{0,99}){0,99}){0,99}", "a{1000000}", "^.{0,100000}$", "[\\d-z]", "\\", "(?i)abc", "^\\cA$", "\\bword\\b",
    "\\Aa\\z", "[a-z&&[^b]]", "(?P<n>a)", "[^\\x00-\\x7f]{3}", "\\u{1F600}", "a**", "$^", "(x+x+)+y", "[\ud7ff]",
    "(?:" * 200 + "a" + ")" * 200, "|".join(f"w{number}" for number in range(3000))
]


class Schemas:
    """Draws schemas. `odd` is the share of keywords and values that a careful client does not send."""

    def __init__(self, drawn, odd=0.15):
        self.drawn, self.odd, self.definitions = drawn, odd, {}

    def chance(self, share):
        return self.drawn.random() < share

    def some(self, items, most):
        return self.drawn.sample(items, self.drawn.randint(0, min(most, len(items))))

    def integer(self):
        if self.chance(0.5):
            return self.drawn.choice([0, 1, -1, 2, 7, 10, 42, 100, -5, 999, 65535])
        edge = self.drawn.choice(EDGES) * self.drawn.choice([1, -1])
        return edge + self.drawn.choice([0, 0, 0, 1, -1, 2, 3, 255, 511, 512, 513, -512, 1024])

    def number(self):
        return self.integer() if self.chance(0.7) else Raw(self.drawn.choice(DECIMALS))

    def size(self):
        """Returns a number of characters, items or properties."""
        if self.chance(self.odd * 0.5):
            return self.drawn.choice([
                -1, 1000, 5000, 100_000, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30,
                Raw("1.0"),
                Raw("1.5"),
                Raw("2e0"), "3", None
            ])
        return self.drawn.choice([0, 1, 1, 2, 2, 3, 4, 5, 8, 20])

    def value(self, depth=2):
        kind = self.drawn.randrange(8 if depth else 6)
        if kind == 6:
            return [self.value(depth - 1) for _ in range(self.drawn.randint(0, 3))]
        if kind == 7:
            return {name: self.value(depth - 1) for name in self.some(NAMES, 3)}
        return [None, True, False, self.number(), self.drawn.choice(TEXTS), self.integer()][kind]

    def root(self):
        """Returns a schema as a whole, with its definitions."""
        special = [self.deep, self.wide, self.recursive, self.unsatisfiable, self.forms_of_old_drafts]
        if self.chance(0.1):
            return self.drawn.choice(special)()
        schema = self.schema(self.drawn.choice([0, 1, 1, 2, 2, 3, 4]))
        if isinstance(schema, dict) and self.definitions:
            schema["$defs"] = {name: schema for name, schema in self.definitions.items()}
        return schema

    def schema(self, depth):
        if self.chance(0.03):
            return self.drawn.choice([True, {}, {}, False])
        kinds = [self.string, self.numeric, self.members, self.of_types]
        if depth > 0:
            kinds += [self.array, self.object] * 2 + [self.combined, self.reference]
        schema = self.drawn.choice(kinds)(depth)
        if isinstance(schema, dict) and self.chance(self.odd):
            # Keywords of other types constrain nothing, or something else at the same place.
            schema = {**self.drawn.choice([self.string, self.numeric, self.members, self.array, self.object])(depth), **schema}
        if isinstance(schema, dict) and self.chance(0.1):
            schema.update(self.annotations())
        return schema

    def annotations(self):
        every = {
            "title": "T", "description": "Words", "default": self.value(), "examples": [self.value()], "$comment": "c",
            "deprecated": True, "readOnly": False, "x-order": 3, "contentEncoding": "base64",
            "$schema": "https://json-schema.org/draft/2020-12/schema", "nullable": True, "discriminator": {"propertyName": "a"},
            "$id": "https://example.com/s", "$anchor": "here", "strict": True
        }
        return {name: every[name] for name in self.some(sorted(every), 3)}

    def pattern(self):
        return self.drawn.choice(ODD_PATTERNS if self.chance(self.odd) else PATTERNS)

    def string(self, _depth):
        schema = {"type": "string"}
        if self.chance(0.5):
            least = self.size()
            schema["minLength"] = least
            if self.chance(0.8):
                schema["maxLength"] = least + self.drawn.randint(0, 9) if isinstance(least, int) else self.size()
        elif self.chance(0.9):
            # A random text without a limit hardly ever ends.
            schema["maxLength"] = self.size()
        if self.chance(0.3):
            schema["pattern"] = self.pattern()
        if self.chance(0.2):
            schema["format"] = self.drawn.choice(FORMATS)
        return schema

    def numeric(self, _depth):
        schema = {"type": self.drawn.choice(["integer", "integer", "number"])}
        for keyword in self.some(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], 2):
            schema[keyword] = self.number()
        if {"minimum", "maximum"} <= set(schema) and self.chance(0.8) and all(
                type(schema[key]) is int for key in ("minimum", "maximum")):
            schema["minimum"], schema["maximum"] = sorted((schema["minimum"], schema["maximum"]))
        if self.chance(0.25):
            schema["multipleOf"] = self.drawn.choice(STEPS)
        if self.chance(0.15):
            schema["format"] = self.drawn.choice(["int32", "int64", "double", "float"])
        return schema

    def members(self, _depth):
        if self.chance(0.5):
            return {"const": self.value()}
        return {"enum": [self.value() for _ in range(self.drawn.choice([1, 2, 3, 8, 40]))]}

    def of_types(self, _depth):
        types = ["null", "boolean", "integer", "number", "string", "array", "object"]
        if self.chance(self.odd * 0.3):
            return {"type": self.drawn.choice(["any", "int", [], ["string", "string"], None, 3, {"type": "string"}])}
        return {"type": self.drawn.sample(types, self.drawn.randint(1, 3)) if self.chance(0.6) else self.drawn.choice(types[:3])}

    def array(self, depth):
        schema = {"type": "array"}
        if self.chance(0.9):
            schema["items"] = self.schema(depth - 1)
        if self.chance(0.25):
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.drawn.randint(0, 3))]
        least = self.size()
        if self.chance(0.4):
            schema["minItems"] = least
        if self.chance(0.9):
            schema["maxItems"] = least + self.drawn.randint(0, 3) if isinstance(least, int) else self.size()
        if self.chance(0.1):
            schema["uniqueItems"] = self.chance(0.5)
        if self.chance(0.1):
            schema["contains"] = self.schema(depth - 1)
            if self.chance(0.7):
                schema[self.drawn.choice(["minContains", "maxContains"])] = self.size()
        if self.chance(0.05):
            schema["unevaluatedItems"] = self.schema(0)
        return schema

    def object(self, depth):
        names = self.some(NAMES, 5)
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        if self.chance(0.7):
            schema["required"] = self.some(names, 5) if self.chance(0.8) else self.some(NAMES, 4)
        if self.chance(0.85):
            schema["additionalProperties"] = self.drawn.choice([False, False, False, True, self.schema(depth - 1)])
        if self.chance(0.2):
            patterns = ["^a", "b$", "^x-", "^[a-z]+$", ".", "^\\d", "^name$", "", "^(a|b)$"]
            schema["patternProperties"] = {pattern: self.schema(depth - 1) for pattern in self.some(patterns, 3)}
        if self.chance(0.15):
            schema["propertyNames"] = self.drawn.choice([{"type": "string"}, True, {}, {"pattern": self.pattern()},
                                                         {"maxLength": 3}, {"enum": names or ["a"]}, False])
        if self.chance(0.15):
            schema["minProperties"] = self.size()
        if self.chance(0.15):
            schema["maxProperties"] = self.size()
        if self.chance(0.06):
            schema["dependentRequired"] = {name: self.some(NAMES, 2) for name in self.some(NAMES, 2)}
        if self.chance(0.06):
            schema["dependentSchemas"] = {name: self.schema(depth - 1) for name in self.some(NAMES, 2)}
        if self.chance(0.04):
            schema["unevaluatedProperties"] = self.drawn.choice([False, True, {"type": "integer"}])
        if self.chance(0.1):
            del schema["type"]
        return schema

    def combined(self, depth):
        keyword = self.drawn.choice(["anyOf", "anyOf", "anyOf", "oneOf", "allOf", "not", "if"])
        if keyword == "not":
            beside = self.drawn.choice([{}, self.string(0), self.numeric(0), self.members(0)])
            return {**beside, "not": self.schema(depth - 1)}
        if keyword == "if":
            return {
                "if": self.schema(depth - 1), "then": self.schema(depth - 1),
                **({"else": self.schema(depth - 1)} if self.chance(0.7) else {})
            }
        parts = [self.schema(depth - 1) for _ in range(self.drawn.choice([0, 1, 2, 2, 2, 3, 4]))]
        if keyword == "allOf" and self.chance(0.6):
            # Parts that fit together.
            parts = [part for part in parts if isinstance(part, dict)]
            schema = self.drawn.choice([self.numeric, self.string, self.object])(depth)
            parts = [{key: value for key, value in schema.items() if self.chance(0.6)} for _ in range(2)]
        return {keyword: parts}

    def reference(self, depth):
        name = self.drawn.choice(NAMES)
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self.schema(depth - 1)
        escaped = name.replace("~", "~0").replace("/", "~1")
        if self.chance(0.7):
            escaped = "".join(one if one.isalnum() and one.isascii() or one in "~_-$" else "".join(f"%{byte:02x}"
                                                                                                   for byte in one.encode())
                              for one in escaped)
        pointer = f"#/$defs/{escaped}"
        if self.chance(self.odd):
            pointer = self.drawn.choice([
                "#", "#/", "#/$defs", "#/$defs/nothing", "", "#here", "http://127.0.0.1:1/x.json", "other.json", "#/%", "#/~2",
                "#/$defs/a/", 3, None, "#/properties/a", "https://json-schema.org/draft/2020-12/schema", "file:///etc/passwd"
            ])
        beside = {"description": "A reference"} if self.chance(0.2) else {}
        return {"$ref": pointer, **beside}

    def deep(self):
        depth = self.drawn.choice([5, 20, 100, 500])
        schema = self.schema(0)
        for _ in range(depth):
            schema = self.drawn.choice(
                [{"type": "array", "items": schema, "minItems": 1, "maxItems": 1}, {"anyOf": [schema]},
                 {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}])
        return schema

    def wide(self):
        count = self.drawn.choice([30, 200, 2000])
        parts = [self.schema(0) for _ in range(count)]
        return self.drawn.choice([{
            "type": "object", "properties": {f"p{number}": part
                                             for number, part in enumerate(parts)}, "additionalProperties": False,
            "required": [f"p{number}" for number in range(count) if self.chance(0.05)]
        }, {"enum": [f"word {number}" for number in range(count)]}, {"enum": [10**18 + number for number in range(count)]},
                                  {"anyOf": parts}, {"oneOf": parts[:50]}, {"allOf": parts[:50]},
                                  {"prefixItems": parts,
                                   "type": "array"}, {"type": "array", "minItems": count, "maxItems": count,
                                                      "items": parts[0]}, {"type": "string", "minLength": count},
                                  {"type": "string", "maxLength": count, "pattern": "^[a-z ]*$"}])

    def recursive(self):
        tree = {
            "type": "object",
            "properties": {"value": self.schema(0), "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
            "required": ["value"], "additionalProperties": False
        }
        node = {
            "anyOf": [{"type": "null"},
                      {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}]
        }
        return self.drawn.choice([
            tree, {"$ref": "#/$defs/node", "$defs": {"node": node}}, {"$ref": "#"}, {"allOf": [{"$ref": "#"}]},
            {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
            {"$ref": "#/$defs/a",
             "$defs": {"a": {"$ref": "#/$defs/b"},
                       "b": {"$ref": "#/$defs/a"}}}, {"type": "array", "items": {"$ref": "#"},
                                                      "minItems": 1}, {"type": "array",
                                                                       "items": {"$ref": "#"}}, {"not": {"$ref": "#"}},
            {"$defs": {"a": {"type": "array", "prefixItems": [{"$ref": "#/$defs/a"}], "minItems": 1}},
             "$ref": "#/$defs/a"}, {"type": "object", "additionalProperties": {"$ref": "#"},
                                    "maxProperties": 2}, {"$dynamicRef": "#node", "$dynamicAnchor": "node"},
            {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}}
        ])

    def unsatisfiable(self):
        return self.drawn.choice([
            False, {"type": "integer", "minimum": 5, "maximum": 4}, {"type": "string", "minLength": 3,
                                                                     "maxLength": 2}, {"enum": []}, {"not": {}},
            {"allOf": [{"type": "string"},
                       {"type": "integer"}]}, {"type": "object", "properties": {"a": False}, "required": ["a"]},
            {"type": "object", "required": ["a"],
             "additionalProperties": False}, {"type": "array", "minItems": 2,
                                              "maxItems": 1}, {"type": "string", "pattern": "^a$",
                                                               "minLength": 2}, {"const": 1, "type": "string"}, {"anyOf": []},
            {"type": "integer", "exclusiveMinimum": 3,
             "exclusiveMaximum": 4}, {"type": []}, {"type": "integer", "minimum": Raw("0.2"), "maximum": Raw("0.8")},
            {"type": "object", "minProperties": 3,
             "maxProperties": 2}, {"type": "array", "items": False,
                                   "minItems": 1}, {"type": "integer", "multipleOf": 10, "minimum": 1,
                                                    "maximum": 9}, {"enum": ["a", "b"], "pattern": "^c"},
            {"type": "object", "properties": {"a": {"enum": []}},
             "required": ["a"]}, {"type": "object", "minProperties": 1, "additionalProperties": False},
            {"type": "object", "minProperties": 2, "properties": {"a": {}}, "additionalProperties": False}, {
                "type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False,
                "properties": {"x": {"type": "string"}}, "required": ["x"]
            }
        ])

    def forms_of_old_drafts(self):
        return self.drawn.choice([{"definitions": {"a": {"type": "integer"}}, "$ref": "#/definitions/a"},
                                  {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]},
                                  {"type": "integer", "minimum": 3,
                                   "exclusiveMinimum": True}, {"dependencies": {"a": ["b"]},
                                                               "type": "object"}, {"type": "string", "nullable": True},
                                  {"type": "array", "items": [{"type": "integer"}], "additionalItems": False
                                   }, {"type": "STRING"}, {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}, {
                                       "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                                       "properties": {"a": {"type": "string"}}, "additionalProperties": False
                                   }, {"properties": {"a": {"required": True, "type": "string"}}}, {"id": "x", "type": "integer"},
                                  {"type": "string", "enum": ["a", None]}, {"divisibleBy": 3, "type": "integer"}])


REGEXES = PATTERNS + [
    "yes|no", "[a-z ]{5,20}", "(abc)+", "\\d{3}-\\d{4}", "[A-Z]{2}\\d*", "a*b", "(red|green|blue)(, (red|green|blue)){0,3}",
    "(?s:.){3}", "\\n", ".*"
]


def grammar(drawn):
    """Returns a grammar in GBNF or Lark: valid, invalid, or one that explodes."""
    word = drawn.choice(["yes", "no", "a b", "ü", "\\n", "x" * drawn.choice([1, 30, 3000])])
    count = drawn.choice([0, 1, 3, 50, 10_000, 10**9, 10**20])
    gbnf = [
        f'root ::= "{word}"', 'root ::= [a-z]+ " " [0-9]{2,3}', 'root ::= item ("," item)*\nitem ::= [0-9]+',
        f'root ::= "a"{{{count}}}', f'root ::= [a-z]{{0,{count}}}', 'root ::= root "a" | "a"', 'root ::= "a" root | "b"',
        'root ::= missing', 'root ::= ', 'x ::= "a"', 'root ::= "a', 'root ::= (', 'root ::= [z-a]', 'root ::= root',
        'root ::= "a" | ', 'root ::= a\na ::= b\nb ::= a', 'root ::= s\ns ::= s s | "a"', 'root ::= s\ns ::= s s s | "" | "a"',
        'root ::= ("a"*)*', 'root ::= ((("a"?)*)?)*', 'root ::= [^"\\\\]*', 'root ::= "\\x41\\u00e9"',
        'root ::= "a" # comment\n\n', 'root ::= ' + "(" * 300 + '"a"' + ")" * 300,
        'root ::= ' + " | ".join(f'"w{number}"' for number in range(2000)), "root ::= .", 'root ::= "" ',
        'root ::= "é" [à-ü]{1,3}', "\n".join(f'r{number} ::= r{number + 1} r{number + 1}'
                                             for number in range(40)) + '\nr40 ::= "a"\nroot ::= r0', 'root::="a"',
        'root ::= "a"\nroot ::= "b"', 'root ::= !"a"', 'root ::= <[5]>'
    ]
    lark = [
        f'start: "{word}"', 'start: /[a-z]{1,5}/', 'start: item ("," item)*\nitem: /[0-9]+/', 'start: A B?\nA: "a"\nB: "b"',
        'start: start "a" | "a"', 'start: missing', 'start:', 'start: "a', 'start: /(/',
        'start: %json {"type": "integer", "minimum": 1, "maximum": 9}', 'start: %json {"const": -9223372036854775808}',
        'start: %json {"type": "integer", "multipleOf": 2147483648}', 'start: %json {', 'start: /a*/*', f'start: "a"{{{count}}}',
        'start: <|endoftext|>', 'start: s\ns: s s | "a" | ', '%import common.INT\nstart: INT', '%ignore /\\s/\nstart: "a" "b"',
        'start: "a" ~ 3', 'start[temperature=0.5]: /[a-z]*/', 'start[max_tokens=3]: /.*/', 'start: /' + "(a|b)" * 300 + '/',
        'start: a\na: b\nb: a', '%llguidance {"no_forcing": true}\nstart: "ok"', 'start: /(?=a)b/',
        'start: T\nT: /[^\\n]{0,100000}/', 'start: x{999999}\nx: "a" | "b"', 'start: "a" & "b"', 'start: ~/a/'
    ]
    odd = ["", " ", "\0", "{}", "hello", "::=", ":", "start: \ud7ff", "root ::= \"a\"\n" * 5000, '"', "root ::= " + "a" * 100_000]
    return drawn.choice(drawn.choice([gbnf, gbnf, lark, lark, odd]))
