"""Reads the answers of the APIs, whole or as a stream, into one form. Raises if they are not well-formed."""

import dataclasses
import fractions
import json
import re

from bodies import CHAT, MESSAGES, RESPONSES

# Larger exponents would take all memory as exact numbers.
LARGEST_EXPONENT = 4000


class Wrong(Exception):
    """What is wrong with an answer: the kind of fault, a colon, and more."""


# ---- Exact JSON.


def exact(text):
    """Returns a number exactly. Integers are integers however they are written."""
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > LARGEST_EXPONENT:
        text = f"{mantissa}e{LARGEST_EXPONENT if int(exponent) > 0 else -LARGEST_EXPONENT}"
    value = fractions.Fraction(text)
    if value.denominator == 1:
        return int(value)
    # Other numbers have the digits that f64 tells apart.
    return value if len(re.sub(r"\D", "", mantissa).strip("0")) <= 17 else fractions.Fraction(repr(float(text)))


def constant(text):
    raise ValueError(f"{text} is no JSON")


class Doubled(ValueError):
    """A key occurs twice in an object."""


def unique(pairs):
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise Doubled(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return value


def loads(text):
    value = json.loads(text, parse_float=exact, parse_constant=constant, object_pairs_hook=unique)
    for one in strings(value):
        # Python accepts halves of characters, which few other programs can read.
        one.encode()
    return value


def strings(value):
    """Returns all texts and keys within a value."""
    if isinstance(value, str):
        return [value]
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [one for item in inner for one in strings(item)]


def given(body, *path):
    """Returns a value within a body. Null is absent."""
    for key in path:
        body = body.get(key) if isinstance(body, dict) else None
    return body


# ---- Answers.


@dataclasses.dataclass
class Choice:
    """A choice of an answer of any API."""

    text: str = ""
    # Names and arguments, which are JSON as text or a value.
    calls: list = dataclasses.field(default_factory=list)
    # `stop`, `length`, or `calls`.
    finish: object = None


@dataclasses.dataclass
class Answer:
    choices: list
    tokens: object = None
    # The failures of drafters.
    failures: list = dataclasses.field(default_factory=list)


FINISHES = {
    "stop": "stop", "length": "length", "tool_calls": "calls", "end_turn": "stop", "stop_sequence": "stop",
    "max_tokens": "length", "tool_use": "calls", "completed": "stop", "incomplete": "length"
}


def drafter_failures(answer):
    return [failure for choice in given(answer, "forerun", "choices") or [] for failure in given(choice, "failures") or []]


def whole(path, body):
    """Reads a whole answer. Raises if it is not well-formed."""
    answer = loads(body.decode())
    if path == MESSAGES:
        if (answer["type"], answer["role"]) != ("message", "assistant"):
            raise Wrong("no message")
        return Answer([Choice(*of_blocks(answer["content"]), FINISHES[answer["stop_reason"]])], answer["usage"]["output_tokens"],
                      drafter_failures(answer))
    if path == RESPONSES:
        return of_response(answer)
    chat = path == CHAT
    if answer["object"] != ("chat.completion" if chat else "text_completion") or not isinstance(answer["id"], str):
        raise Wrong("no completion")
    choices = []
    for index, choice in enumerate(answer["choices"]):
        if choice["index"] != index:
            raise Wrong(f"wrong indices of choices: {choice['index']} instead of {index}")
        message = choice["message"] if chat else {"content": choice["text"]}
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
        choices.append(Choice(message["content"] or "", calls, FINISHES[choice["finish_reason"]]))
    return Answer(choices, answer["usage"]["completion_tokens"], drafter_failures(answer))


def of_blocks(blocks):
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text, [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]


def of_response(answer):
    if answer["object"] != "response" or answer["status"] not in ("completed", "incomplete"):
        raise Wrong(f"a response with the status {answer['status']!r}: {answer.get('error')}")
    parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    calls = [(item["name"], item["arguments"]) for item in answer["output"] if item["type"] == "function_call"]
    finish = FINISHES[answer["status"]]
    choice = Choice("".join(part["text"] for part in parts), calls, "calls" if calls and finish == "stop" else finish)
    return Answer([choice], answer["usage"]["output_tokens"], drafter_failures(answer))


def events(body):
    """Returns the data of the events of a stream."""
    for block in body.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line]
        for line in lines:
            if not re.match(r"(data|event|id|retry)?:|\[", line):
                raise Wrong(f"a line of the stream is no event: {line[:100]!r}")
        data = [line[5:].strip() for line in lines if line.startswith("data:")]
        if data and data != ["[DONE]"]:
            yield loads("\n".join(data))


def streamed(path, body):
    """Reads a stream. Raises if it is not well-formed."""
    every = list(events(body))
    for event in every:
        if given(event, "error") and event.get("type") in (None, "error"):
            raise Refused(event["error"])
    if path == RESPONSES:
        last = every[-1]
        if last["type"] not in ("response.completed", "response.incomplete"):
            raise Refused(given(last, "response", "error") or last)
        answer = of_response(last["response"])
        deltas = "".join(event["delta"] for event in every if event["type"] == "response.output_text.delta")
        if deltas != answer.choices[0].text:
            raise Wrong("the deltas of the stream are another text than its end")
        return answer
    if path == MESSAGES:
        return of_events(every)
    if not body.rstrip().endswith(b"data: [DONE]"):
        raise Wrong(f"the stream does not end with [DONE]: {body[-200:]!r}")
    choices, tokens, failures = {}, None, []
    for chunk in every:
        tokens = given(chunk, "usage", "completion_tokens") or tokens
        failures += drafter_failures(chunk)
        for piece in chunk["choices"]:
            choice = choices.setdefault(piece["index"], Choice())
            delta = piece["delta"] if path == CHAT else {"content": piece["text"]}
            choice.text += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(choice.calls):
                    choice.calls.append((call["function"]["name"], ""))
                name, arguments = choice.calls[call["index"]]
                choice.calls[call["index"]] = (name, arguments + (call["function"].get("arguments") or ""))
            if piece.get("finish_reason"):
                choice.finish = FINISHES[piece["finish_reason"]]
    return Answer([choices[index] for index in range(len(choices))], tokens, failures)


def of_events(every):
    choice, tokens, inputs = Choice(), None, {}
    for event in every:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            inputs[event["index"]] = [event["content_block"]["name"], ""]
        elif event["type"] == "content_block_delta":
            choice.text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                inputs[event["index"]][1] += event["delta"]["partial_json"]
        elif event["type"] == "message_delta":
            choice.finish, tokens = FINISHES[event["delta"]["stop_reason"]], event["usage"]["output_tokens"]
    if (every[0]["type"], every[-1]["type"]) != ("message_start", "message_stop"):
        raise Wrong(f"a stream has no begin or end: {every[0]['type']}, {every[-1]['type']}")
    choice.calls = [(name, text or "{}") for name, text in inputs.values()]
    return Answer([choice], tokens)


class Refused(Exception):
    """An error within a stream."""

    def __init__(self, error):
        super().__init__(str(error))
        self.error = error if isinstance(error, dict) else {"message": str(error)}
