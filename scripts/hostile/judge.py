"""Judges answers: are they well-formed, and do they obey the request?

The judge sees only the request and the answer, so that it also judges a request that was edited.
"""

import dataclasses
import datetime
import fractions
import re
import threading
import unicodedata

import bodies
from answers import Doubled, Refused, Wrong, given, loads, streamed, whole
from guesses import guesses

try:
    import jsonschema
    import referencing
except ImportError:
    raise SystemExit("the Python package jsonschema is missing: install it with `python3 -m pip install jsonschema`") from None

# What an answer says that is ended because of its time.
TIMEOUT = "longer than this server allows"
# The longest message of an error.
LONGEST_MESSAGE = 4000
# Schemas and answers with which `jsonschema` fails itself.
UNJUDGED = (RecursionError, ArithmeticError, TypeError, AttributeError, ValueError, KeyError, re.error,
            jsonschema.exceptions.UnknownType, jsonschema.exceptions._WrappedReferencingError,
            referencing.exceptions.Unresolvable)

# ---- Schemas.


def on_dates(value):
    return not isinstance(value, str) or re.fullmatch(r"\d{4}-\d\d-\d\d", value) and bool(datetime.date.fromisoformat(value))


CLOCK = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)"
FORMATS = jsonschema.FormatChecker(["ipv4", "ipv6", "uuid", "email"])
FORMATS.checks("date", raises=ValueError)(on_dates)
FORMATS.checks("time")(lambda value: not isinstance(value, str) or re.fullmatch(CLOCK, value))
FORMATS.checks("date-time", raises=ValueError)(
    lambda value: not isinstance(value, str) or re.fullmatch(r".{10}[tT ]" + CLOCK, value) and on_dates(value[:10]))
# A repeated group with a repetition in it: Python might never end.
EXPLODES = re.compile(r"(?:[*+?]|\{\d*,\d*\})[^()]*\)(?:[*+]|\{)")


def searches(pattern, text):
    """Returns whether a pattern is found, as in ECMAScript. Raises if Python cannot say."""
    if EXPLODES.search(pattern) or re.search(r"\\[pPAzZbBGuxc]|&&|\(\?[^:]|\\\d", pattern) and pattern.isascii():
        raise ValueError("Python has other patterns")
    if any(unicodedata.category(character) == "Cn" for character in text):
        raise ValueError("Python does not know all characters")
    return re.search(re.sub(r"(?<!\\)\$", r"\\Z", pattern), text)


def check_pattern(validator, pattern, value, _schema):
    if validator.is_type(value, "string") and not searches(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def check_multiple(validator, step, value, _schema):
    if validator.is_type(value, "number") and fractions.Fraction(value) % fractions.Fraction(step):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {step}")


def check_pattern_properties(validator, patterns, value, _schema):
    for pattern, schema in patterns.items() if validator.is_type(value, "object") else ():
        for key, item in value.items():
            if searches(pattern, key):
                yield from validator.descend(item, schema, path=key, schema_path=pattern)


def check_additional_properties(validator, additional, value, schema):
    """Also with the pattern "", which matches every key. `jsonschema` takes it for none."""
    for key, item in value.items() if validator.is_type(value, "object") else ():
        patterns = schema.get("patternProperties", {})
        if key not in schema.get("properties", {}) and not any(searches(pattern, key) for pattern in patterns):
            yield from validator.descend(item, additional, path=key)


def check_reference(validator, reference, value, _schema):
    """As `jsonschema`, but a reference that leads to itself ends at once, and not after thousands of frames."""
    active = FOLLOWED.__dict__.setdefault("active", set())
    here = (reference, id(value))
    if here in active:
        raise RecursionError(f"{reference} leads to itself")
    active.add(here)
    try:
        yield from validator._validate_reference(ref=reference, instance=value)
    finally:
        active.discard(here)


# The references that each thread follows.
FOLLOWED = threading.local()
Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator, {
        "$ref": check_reference,
        "pattern": check_pattern,
        "multipleOf": check_multiple,
        "patternProperties": check_pattern_properties,
        "additionalProperties": check_additional_properties
    })


def violation(schema, value):
    """Returns what violates a schema, or None. Raises one of UNJUDGED if that cannot be said."""
    validator = Validator(schema, format_checker=FORMATS, registry=referencing.Registry())
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return error and (f"{error.validator}",
                      f"{error.message[:300]} (at {list(error.absolute_path)}, by {list(error.absolute_schema_path)[-4:]})")


# ---- What a request asks for.


@dataclasses.dataclass
class Asked:
    """What a request asks for, as far as an answer shows it."""

    schema: object = None
    has_schema: bool = False
    regex: object = None
    choice: object = None
    # The names of tools and their schemas.
    tools: list = dataclasses.field(default_factory=list)
    must_call: bool = False


def asked(path, body):
    found = Asked()
    if path == bodies.MESSAGES:
        forms = [given(body, "output_config", "format"), given(body, "output_format")]
        schemas = [form["schema"] for form in forms if given(form, "type") == "json_schema" and "schema" in form]
    elif path == bodies.RESPONSES:
        form = given(body, "text", "format")
        schemas = [form["schema"]] if given(form, "type") == "json_schema" and "schema" in form else []
        schemas += [{"type": "object"}] if given(form, "type") == "json_object" else []
    else:
        form, outputs = given(body, "response_format"), given(body, "structured_outputs") or {}
        schemas = [
            value for value in [given(body, "json_schema"),
                                given(body, "guided_json"),
                                given(outputs, "json")] if value is not None
        ]
        schemas = [loads(value) if isinstance(value, str) else value for value in schemas]
        if given(form, "type") == "json_schema" and given(form, "json_schema", "schema") is not None:
            schemas.append(form["json_schema"]["schema"])
        if given(form, "type") == "json_object":
            schemas.append(form["schema"] if form.get("schema") is not None else {"type": "object"})
        schemas += [{"type": "object"}] if given(outputs, "json_object") else []
        found.regex = given(body, "guided_regex") or given(outputs, "regex")
        found.choice = given(body, "guided_choice") or given(outputs, "choice")
    found.has_schema, found.schema = bool(schemas), schemas[0] if schemas else None
    for tool in given(body, "tools") or []:
        function = given(tool, "function") or tool
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            parameters = function.get("input_schema" if path == bodies.MESSAGES else "parameters")
            found.tools.append((function["name"], parameters if parameters is not None else {"type": "object"}))
    choice = given(body, "tool_choice")
    kind = choice if isinstance(choice, str) else given(choice, "type")
    found.must_call = kind in ("required", "function", "any", "tool")
    return found


# ---- The verdict.


@dataclasses.dataclass
class Verdict:
    # `answered`, `refused`, `busy`, or `failed`.
    outcome: str
    reason: str = ""
    # Whether the answer was compared with a schema.
    compared: bool = False


def judge(path, request, status, body):
    """Returns the verdict on an answer with a status and a body."""
    try:
        sent = loads(request.decode())
    except (ValueError, RecursionError) as error:
        sent = error
    try:
        if status in (429, 503, 504):
            return Verdict("busy", str(status))
        if status >= 500:
            raise Wrong(f"status {status}: {body[:500].decode(errors='replace')}")
        if status >= 400:
            message = check_error(status, loads(body.decode())["error"], sent, request)
            check_refusal(path, sent, message)
            return Verdict("refused", message)
        if isinstance(sent, ValueError) and not isinstance(sent, Doubled):
            raise Wrong(f"status {status} though the body is no JSON: {sent}")
        if path in (bodies.COUNT, bodies.TOKENIZE, bodies.DETOKENIZE):
            return Verdict("answered", check_tokens(path, loads(body.decode())))
        return check_answer(path, sent, body)
    except Refused as refused:
        if TIMEOUT in str(refused.error.get("message")):
            return Verdict("busy", "time")
        kind = refused.error.get("type") or refused.error.get("code")
        if kind in ("server_error", "api_error"):
            return Verdict("failed", f"a stream ends with an error: {refused.error}")
        try:
            return Verdict("refused", check_error(400, refused.error, sent, request))
        except Wrong as wrong:
            return Verdict("failed", str(wrong))
    except Wrong as wrong:
        return Verdict("failed", str(wrong))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return Verdict("failed",
                       f"an answer is not well-formed: {error!r}, status {status}: {body[:500].decode(errors='replace')}")


def check_error(status, error, sent, request):
    """Checks an error, and returns its message."""
    message = error["message"]
    if not isinstance(message, str) or not message:
        raise Wrong(f"an error without a message: status {status}, {error}")
    if len(message) > LONGEST_MESSAGE:
        raise Wrong(f"an error of {len(message)} characters: {message[:200]}")
    inside = re.search(r"/(root|home|work|usr|tmp|etc|build)/[\w.-]+|\.rs:\d+|\bpanic|RUST_BACKTRACE", message)
    if inside and inside.group().encode() not in request:
        raise Wrong(f"an error shows the server's inside: {message[:500]}")
    if isinstance(sent, dict) and status == 400 and not error.get("param"):
        # What is wrong with the text of the body is found before its fields are read.
        in_text = ["the body is not a valid JSON object", "digits than JSON numbers keep"]
        # Anthropic's errors have no field for it.
        if not any(words in message for words in in_text) and not any(name in message for name in keys(sent) if name):
            raise Wrong(f"an error that names no field: {message[:500]}")
    return message


def check_refusal(path, sent, message):
    """Checks that no value satisfies a schema of which the server says so."""
    if not isinstance(sent, dict) or not re.search(r"no value satisfies|[Uu]nsatisfiable", message):
        return
    try:
        found = asked(path, sent)
        # The parameters of a tool are an object, whatever else their schema allows.
        tools = [{"allOf": [schema, {"type": "object"}], **{key: schema[key] for key in ("$defs", "definitions") if key in schema}}
                 if isinstance(schema, dict) else schema for _, schema in found.tools]
        schemas = ([found.schema] if found.has_schema else []) + tools
        # The server knows formats that are not checked here.
        if not schemas or "format" in keys(schemas):
            return
        values = [next(value for value in guesses(schema) if violation(schema, value) is None) for schema in schemas]
    except (StopIteration, *UNJUDGED):
        return
    raise Wrong(f"a schema is refused that can be satisfied: {message[:200]}: {str(values)[:200]} satisfies {str(schemas)[:300]}")


def keys(value):
    known = {"messages", "prompt", "input", "tokens", "content", "max_tokens"}
    if isinstance(value, dict):
        known |= set(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return known.union(*(keys(item) for item in inner))


def check_tokens(path, answer):
    if path == bodies.COUNT and type(
            answer["input_tokens"]) is not int or path == bodies.TOKENIZE and not isinstance(answer["tokens"], list):
        raise Wrong(f"not well-formed: {answer}")
    if path == bodies.DETOKENIZE and not any(isinstance(answer.get(name), str) for name in ("content", "prompt")):
        raise Wrong(f"not well-formed: {answer}")
    return ""


def check_answer(path, sent, body):
    streams = isinstance(sent, dict) and sent.get("stream") is True
    answer = streamed(path, body) if streams or isinstance(sent, Exception) and body.startswith(
        (b"data:", b"event:", b":")) else whole(path, body)
    if answer.failures:
        raise Wrong(f"a drafter failed: {answer.failures[0]}")
    if any(choice.finish is None for choice in answer.choices):
        raise Wrong("an answer without an end")
    # Of two values of a key, no one knows which counts.
    if not isinstance(sent, dict):
        return Verdict("answered")
    check_counts(path, sent, answer)
    # Other fields than a format may begin or end the text.
    messages = given(sent, "messages")
    begun = path == bodies.MESSAGES and isinstance(messages, list) and given(messages[-1], "role") == "assistant"
    others = ("stop", "stop_sequences", "stop_token_ids", "echo", "continue_final_message", "ignore_eos", "bad_words",
              "functions", "suffix", "skip_special_tokens")
    if begun or any(sent.get(name) for name in others):
        return Verdict("answered")
    found = asked(path, sent)
    compared = [check_choice(found, choice, sent) for choice in answer.choices if choice.finish != "length"]
    return Verdict("answered", compared=any(compared))


def check_counts(path, sent, answer):
    prompts = sent.get("prompt") if path == bodies.COMPLETIONS else None
    prompts = len(prompts) if isinstance(prompts, list) and not isinstance(prompts[0], int) else 1
    count = (sent.get("n") or 1) * prompts if path in (bodies.CHAT, bodies.COMPLETIONS) else 1
    if len(answer.choices) != count:
        raise Wrong(f"{len(answer.choices)} choices instead of {count}")
    most = sent.get("max_output_tokens" if path == bodies.RESPONSES else "max_tokens")
    most = sent.get("max_completion_tokens") or most if path == bodies.CHAT else most
    # Other fields mean other numbers of tokens.
    counted = answer.tokens is not None and not sent.get("best_of") and sent.get("n_predict") is None
    if counted and isinstance(most, int) and 0 < most and answer.tokens > most * count:
        raise Wrong(f"too many tokens: {answer.tokens}, though {most} are the most")
    stops = sent.get("stop_sequences" if path == bodies.MESSAGES else "stop") if path != bodies.RESPONSES else None
    stops = [stops] if isinstance(stops, str) else stops or []
    if not any(sent.get(name) for name in ("min_tokens", "include_stop_str_in_output", "echo", "continue_final_message")):
        for stop in stops:
            if any(stop in choice.text for choice in answer.choices):
                raise Wrong(f"an answer has its stop string: {stop!r} in {[choice.text for choice in answer.choices]!r}"[:500])


def check_choice(found, choice, sent):
    """Checks a choice that ended by itself. Returns whether it could be compared with a schema."""
    compared = False
    if found.must_call and not choice.calls:
        raise Wrong(f"no call, though one is required: {choice.text[:300]!r}")
    if found.must_call or choice.calls and found.has_schema:
        for name, arguments in choice.calls:
            schemas = [schema for tool, schema in found.tools if tool == name]
            if not schemas:
                raise Wrong(f"a call of no tool: {name!r}")
            # Of several tools with a name, no one knows which is called.
            if len(schemas) == 1:
                compared |= check_schema(schemas[0], arguments, f"the arguments of {name!r}")
        single = sent.get("parallel_tool_calls") is False or given(sent, "tool_choice", "disable_parallel_tool_use")
        if single and len(choice.calls) > 1:
            raise Wrong(f"{len(choice.calls)} calls, though one is allowed")
    elif found.has_schema:
        compared = check_schema(found.schema, choice.text, "the text")
    elif isinstance(found.choice, list) and choice.text not in found.choice:
        raise Wrong(f"the text is none of the choices: {choice.text[:300]!r}")
    elif isinstance(found.regex, str):
        try:
            matches = searches(f"^(?:{found.regex})$", choice.text)
        except (ValueError, re.error, RecursionError, ArithmeticError):
            return False
        if not matches:
            raise Wrong(f"the text does not match its expression: {choice.text[:300]!r}, {found.regex[:300]!r}")
        compared = True
    return compared


def check_schema(schema, text, what):
    try:
        value = loads(text) if isinstance(text, str) else text
    except Doubled as error:
        raise Wrong(f"{what} has a key twice: {error}: {text[:300]!r}") from None
    except (ValueError, RecursionError) as error:
        raise Wrong(f"{what} is no JSON: {error}: {text[:300]!r}") from None
    try:
        wrong = violation(schema, value)
    except UNJUDGED:
        return False
    if wrong:
        raise Wrong(f"{what} violates its schema by {wrong[0]}: {wrong[1]}: {str(text)[:300]}")
    return True
