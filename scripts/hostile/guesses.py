"""Guesses values that satisfy a schema, to find schemas that a server wrongly takes for unsatisfiable."""

import random
import urllib.parse

# The most characters or items of a guess.
MOST = 3000
VALUES = [None, True, False, 0, 1, -1, 7, 10, 100, "", "a", "b", "ab", "red", "abc", "12", "A", "xa", "a" * 30, [], [0], ["a"], {}, {"a": 1}]
TEXTS = ["", "a", "b", "ab", "c", "x", "1", "12", "123", "A", "Abc", "red", "blue", "abc", "abcd", "-", ".", "+1", " ", "é", "à", "name", "a b", "😀"]
# The keywords that tell the type of a schema without one.
TELLING = {"properties": "object", "required": "object", "items": "array", "minItems": "array", "minLength": "string", "pattern": "string",
           "minimum": "integer", "maximum": "integer", "multipleOf": "integer"}


def guesses(schema, count=150):
    """Returns values, some of which probably satisfy a schema if any does. Numbers must be exact."""
    drawn = random.Random(0)
    for _ in range(count):
        try:
            yield guess(drawn, schema, schema, 6)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError):
            # A keyword has a wrong value.
            yield drawn.choice(VALUES)


def guess(drawn, schema, root, depth):
    if not isinstance(schema, dict) or depth < 0:
        return drawn.choice(VALUES)
    if "$ref" in schema:
        target = root
        for name in urllib.parse.unquote(schema["$ref"])[2:].split("/"):
            target = target[name.replace("~1", "/").replace("~0", "~")]
        return guess(drawn, target, root, depth - 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return drawn.choice(schema["enum"])
    for keyword in ("anyOf", "oneOf", "allOf"):
        if schema.get(keyword):
            rest = {key: value for key, value in schema.items() if key != keyword}
            parts = schema[keyword] if keyword == "allOf" else [drawn.choice(schema[keyword])]
            return guess(drawn, {**rest, **{key: value for part in parts for key, value in part.items()}}, root, depth - 1)
    kinds = schema.get("type") or [kind for keyword, kind in TELLING.items() if keyword in schema]
    kind = drawn.choice(kinds) if isinstance(kinds, list) and kinds else kinds or None
    if kind in ("integer", "number"):
        return number(drawn, schema)
    if kind == "string":
        least = min(schema.get("minLength", 0), MOST)
        return drawn.choice([*TEXTS, "a" * least, "a" * min(schema.get("maxLength", least), MOST), "b" * least, "1" * least])
    if kind == "array":
        first = schema.get("prefixItems", [])
        least = max(schema.get("minItems", 0), schema.get("minContains", 0))
        length = min(drawn.choice([least, least, schema.get("maxItems", least), len(first)]), MOST)
        parts = [*first, *[schema.get("items", schema.get("contains", True))] * max(length - len(first), 0)][:length]
        return [guess(drawn, part, root, depth - 1) for part in parts]
    if kind == "object":
        properties = schema.get("properties", {})
        optional = [name for name in properties if drawn.random() < drawn.choice([0, 0.3, 1])]
        names = dict.fromkeys([*schema.get("required", []), *optional])
        while len(names) < min(schema.get("minProperties", 0), 50):
            names[drawn.choice(["a", "b", "c", "x-y", "name", "ab", "1"]) + drawn.choice(["", "b", str(len(names))])] = None
        other = schema.get("additionalProperties", True)
        return {name: guess(drawn, properties.get(name, other), root, depth - 1) for name in names}
    if kind in ("null", "boolean"):
        return drawn.choice([True, False]) if kind == "boolean" else None
    return drawn.choice(VALUES)


def number(drawn, schema):
    step = schema.get("multipleOf", 1)
    low = [schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema]
    high = [schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema]
    start = drawn.choice([*low, *high] or [0])
    return (start // step + drawn.choice([-1, 0, 0, 1, 1, 2])) * step if drawn.random() < 0.9 else start
