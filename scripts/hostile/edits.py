"""Valid requests, as the official clients send them, and the same ones with edits."""

import copy
import random

from bodies import CHAT, COMPLETIONS, COUNT, DETOKENIZE, HELLO, LEAVES, MESSAGES, READS, RESPONSES, TOKENIZE, Request, chance
from schemas import TEXTS, Pairs, Raw, Schemas, encode

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"], "additionalProperties": False
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False
}
CALLED = HELLO + [{
    "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None, "function_call": None,
    "tool_calls": [{
        "id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\", \"days\": 2}"}
    }]
}, {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}]
FUNCTION = {"name": "get_weather", "description": "Returns the weather", "parameters": WEATHER}
TOOLS = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]}, {
    "role": "assistant",
    "content": [{"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris", "days": 2}}]
}, {
    "role": "user", "content": [{
        "type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain."}], "is_error": False
    }]
}]
CLAUDE_TOOLS = [{"name": "get_weather", "description": "Returns the weather", "input_schema": WEATHER}]
VALID = [
    (COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 10, "temperature": 1.2, "seed": -1}),
    (COMPLETIONS, {
        "prompt": ["Once", "The king"], "max_tokens": 8, "n": 2, "temperature": 1, "seed": 5, "logprobs": 2, "stop": ["\n\n"],
        "logit_bias": {"5": -1}, "top_p": 0.9, "top_k": 40, "min_p": 0.05
    }),
    (COMPLETIONS, {
        "prompt": [[5, 6, 7]], "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}, "echo": False,
        "best_of": 1, "suffix": None, "user": "u"
    }),
    (COMPLETIONS, {
        "prompt": "Once", "max_tokens": 6, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
        "ignore_eos": True, "min_tokens": 2, "stop_token_ids": [5], "speculation": {"method": "pearl", "draft_tokens": 3}
    }),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 40, "json_schema": {"const": 5}}),
    (COMPLETIONS, {
        "prompt": "x", "max_tokens": 40, "temperature": 2,
        "json_schema": {"type": "integer", "multipleOf": 7, "minimum": 3, "maximum": 700}
    }),
    (COMPLETIONS, {"prompt": "The id as JSON: ", "max_tokens": 40, "json_schema": {"enum": [123456789, 1234567890123]}}),
    (COMPLETIONS, {
        "prompt": "x", "max_tokens": 40, "temperature": 1.5, "json_schema": {
            "type": "object", "properties": {"folder": {"type": "string", "format": "date"}}, "required": ["folder"],
            "additionalProperties": False
        }
    }),
    (COMPLETIONS, {
        "prompt": "x", "max_tokens": 60, "temperature": 1.5, "guided_json": {
            "type": "object", "patternProperties": {"^a": {"type": "integer"}}, "properties": {"ab": {"maximum": 9}},
            "additionalProperties": False, "maxProperties": 2
        }
    }),
    (COMPLETIONS, {
        "prompt": "x", "max_tokens": 60, "temperature": 1.5, "structured_outputs": {
            "json": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}}}
        }
    }),
    (COMPLETIONS, {"prompt": "Is it raining? ", "max_tokens": 6, "guided_choice": ["yes", "no"]}),
    (COMPLETIONS, {"prompt": "A number: ", "max_tokens": 12, "guided_regex": "[0-9]{3}-[0-9]{4}"}),
    (COMPLETIONS, {"prompt": "A sum: ", "max_tokens": 20, "grammar": 'root ::= n ("+" n){1,3}\nn ::= [0-9]{1,2}'}),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 9, "structured_outputs": {"regex": "a{2,4}b?"}}),
    (CHAT,
     {"model": "forerun", "messages": HELLO, "max_completion_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 3}),
    (CHAT, {
        "messages": [{"role": "system",
                      "content": "Be brief."}, *HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
                     {"role": "user", "name": "ann", "content": [{"type": "text", "text": "And?"}]}], "max_tokens": 8,
        "stream": True
    }),
    (CHAT, {
        "messages": CALLED, "tools": TOOLS, "max_completion_tokens": 10, "parallel_tool_calls": True, "user": None, "store": None,
        "metadata": None
    }),
    (CHAT, {
        "messages": HELLO, "tools": TOOLS, "tool_choice": "required", "max_completion_tokens": 100, "parallel_tool_calls": False,
        "seed": 1
    }),
    (CHAT, {
        "messages": HELLO, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_tokens": 100, "stream": True, "temperature": 1.5
    }),
    (CHAT, {
        "messages": HELLO, "max_tokens": 100, "temperature": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    }),
    (CHAT,
     {"messages": HELLO, "max_tokens": 100, "temperature": 1.5, "response_format": {"type": "json_object", "schema": WEATHER}}),
    (CHAT, {"messages": HELLO, "max_tokens": 60, "response_format": {"type": "json_object"}}),
    (CHAT, {
        "messages": HELLO, "max_tokens": 100, "temperature": 1.5, "tools": TOOLS,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    }),
    (CHAT, {
        "messages": [*HELLO, {"role": "assistant", "content": "One, two, thr"}], "max_tokens": 8, "continue_final_message": True,
        "add_generation_prompt": False, "chat_template_kwargs": {"enable_thinking": False}
    }),
    (CHAT, {
        "messages": HELLO, "max_tokens": 8, "n": 3, "stop": "e", "reasoning_effort": "low", "token_details": True,
        "logit_bias": {"7": 2}, "service_tier": "auto", "verbosity": "low"
    }),
    (MESSAGES, {
        "model": "forerun", "max_tokens": 12, "messages": HELLO, "system": "Be brief.", "temperature": 0,
        "metadata": {"user_id": "u"}, "stop_sequences": ["\n\n"]
    }),
    (MESSAGES, {
        "max_tokens": 10, "tools": CLAUDE_TOOLS, "messages": BLOCKS, "system": [{"type": "text", "text": "Be brief."}],
        "thinking": {"type": "disabled"}, "top_k": 5, "top_p": 0.9
    }),
    (MESSAGES, {
        "max_tokens": 100, "tools": CLAUDE_TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "messages": HELLO, "stream": True
    }),
    (MESSAGES, {
        "max_tokens": 100, "messages": HELLO, "temperature": 1.5,
        "output_config": {"format": {"type": "json_schema", "schema": PERSON}}
    }),
    (MESSAGES, {
        "max_tokens": 8, "messages": [
            *HELLO, {"role": "assistant", "content": "Paris."}, {"role": "system", "content": "5000 tokens left"},
            {"role": "user", "content": "And Spain?"}
        ]
    }),
    (COUNT, {"messages": BLOCKS, "tools": CLAUDE_TOOLS, "system": "Be brief."}),
    (RESPONSES, {
        "model": "forerun", "input": "Hello", "max_output_tokens": 12, "temperature": 0, "instructions": "Be brief.", "store": False,
        "metadata": {"a": "b"}, "reasoning": {"effort": "low"}
    }),
    (RESPONSES, {
        "input": [
            *HELLO, {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "Rain."}
        ], "max_output_tokens": 8, "tools": [{"type": "function", "strict": True, **FUNCTION}], "stream": True
    }),
    (RESPONSES, {
        "input": "Hello", "max_output_tokens": 100, "temperature": 1.5,
        "text": {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": PERSON}}
    }),
    (TOKENIZE, {"content": "Once upon a time", "add_special": True, "with_pieces": True}),
    (TOKENIZE, {"prompt": "Once", "add_special_tokens": False}),
    (TOKENIZE, {"messages": HELLO}),
    (DETOKENIZE, {"tokens": [5, 6, 7]}),
]


def places(value, path=()):
    """Returns the paths of all values within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inner for place in [(*path, key), *places(item, (*path, key))]]


def nested(drawn):
    opening, closing = drawn.choice([("[", "]"), ('{"a":', "}")])
    return Raw(opening * 500 + "1" + closing * 500)


def replacement(drawn, old):
    """Returns a value for the place of another one."""
    huge = drawn.choice([10_000, 300_000]) if chance(drawn, 0.9) else 9_000_000
    numbers = [0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -2**63, -2**63 - 1, 10**30, Raw("1e400"), Raw("-1e999"), Raw("1e-400"),
               Raw("0.1"), Raw("-0"), Raw("1.0"), Raw("9" * 5000)]
    others = [None, True, False, "", "x", [], {}, [None], {"": None}, [[]], 3, "null", "1", {"type": "x"}]
    return drawn.choice([
        lambda: None, lambda: drawn.choice(numbers), lambda: drawn.choice(numbers), lambda: drawn.choice(others),
        lambda: drawn.choice(others), lambda: "x" * huge, lambda: [old] * drawn.choice([0, 2, 100, 1000]), lambda: nested(drawn),
        lambda: [old], lambda: {"value": old}, lambda: str(old), lambda: Schemas(drawn).value(), lambda: Schemas(drawn).root(),
        lambda: drawn.choice(TEXTS)
    ])()


def edit(drawn, value):
    """Changes one place of a value."""
    place = drawn.choice(places(value) or [()])
    if not place:
        return
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    key, action = place[-1], drawn.randrange(10)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[drawn.choice(["x", "", key + "_", key.upper(), "type"])] = holder.pop(key)
    elif action == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif action == 3:
        holder[key] = Double(holder[key], replacement(drawn, holder[key]))
    else:
        holder[key] = replacement(drawn, holder[key])


class Double:
    """A value whose key is written twice, with another value first or second."""

    def __init__(self, one, other):
        self.one, self.other = one, other


def with_doubles(value):
    """Returns a value with each `Double` as two pairs."""
    if isinstance(value, Double):
        return with_doubles(value.other)
    if isinstance(value, dict):
        pairs = Pairs()
        for key, item in value.items():
            for one in ([item.one, item.other] if isinstance(item, Double) else [item]):
                pairs.append((key, with_doubles(one)))
        return pairs
    return [with_doubles(item) for item in value] if isinstance(value, list) else value


def edited_request(seed, number):
    drawn = random.Random(f"{seed} edited {number}")
    path, body = copy.deepcopy(drawn.choice(VALID))
    for _ in range(drawn.randint(1, 3)):
        edit(drawn, body)
    data, content_type = encode(with_doubles(body), ascii=chance(drawn, 0.3)).encode(), "application/json"
    # What happens to the bytes on their way.
    if chance(drawn, 0.15):
        at = drawn.randrange(len(data) or 1)
        data = drawn.choice([
            data[:at], data[:at] + drawn.choice([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\\ud800"]) + data[at:],
            data + drawn.choice([b"}", b" x", b"\0"]), b"\xef\xbb\xbf" + data,
            data.decode().encode("utf-16")
        ])
    if chance(drawn, 0.05):
        content_type = drawn.choice([
            "text/plain", "", "application/x-www-form-urlencoded", "application/json; charset=latin-1",
            "multipart/form-data; boundary=x", "x"
        ])
    if chance(drawn, 0.05):
        path = drawn.choice([CHAT, COMPLETIONS, MESSAGES, RESPONSES, COUNT, TOKENIZE, DETOKENIZE])
    return Request(f"edited {number}", "edited", path, data, content_type, LEAVES if chance(drawn, 0.03) else READS)
