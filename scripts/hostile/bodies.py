"""Random requests to a server. A request depends only on the seed and its number."""

import dataclasses
import random

from schemas import REGEXES, TEXTS, Schemas, encode, grammar

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
COUNT, TOKENIZE, DETOKENIZE = "/v1/messages/count_tokens", "/tokenize", "/detokenize"
# How a client takes an answer.
READS, LEAVES = "reads", "leaves"


@dataclasses.dataclass
class Request:
    number: str
    kind: str
    path: str
    body: bytes
    content_type: str = "application/json"
    manner: str = READS


HELLO = [{"role": "user", "content": "Hello"}]


def chance(drawn, share):
    return drawn.random() < share


def sampling(drawn):
    """Returns options of sampling. Most are hot, so that answers are random texts."""
    body = {"temperature": drawn.choice([0, 0, 0.3, 1, 1.5, 1.5, 2, 2, 2])}
    every = {
        "top_p": [0, 0.1, 0.9, 1, 1.0, -1, 2, None],
        "top_k": [-1, 0, 1, 5, 50, 10**6, -2, 2**40, None],
        "min_p": [0, 0.05, 1, -1, 2, None],
        "presence_penalty": [-2, 0, 0.5, 2, 3, None],
        "frequency_penalty": [-2, 0, 0.5, 2, -5, None],
        "repetition_penalty": [0.5, 1, 1.3, 2, 0, -1, 1e10],
        "repeat_penalty": [1.1],
        "seed": [-1, 0, 1, 7, 2**31, 2**53 + 1, 2**63 - 1, -2**63, 2**63, 1.5, "7", None],
        "logit_bias": [{}, {"5": 5}, {"5": -100, "6": 100}, {"1": 1e9}, {"x": 1}, {"999999999": 1}, [], None,
                       {str(token): 3
                        for token in range(300)}],
        "n": [1, 2, 3, 5, 0, -1, 12, 100, 1000, None],
        "best_of": [1, 2, 4, 0, None],
        "stop": ["\n", ["a", "e"], [], "", [""], ["\u00e9" * 100], ["x"] * 20, None, [None]],
        "logprobs": [True, False, 0, 1, 5, 20, 21, -1, None],
        "top_logprobs": [0, 1, 5, 20, 21, 1000, -1, None],
        "ignore_eos": [True, False, None],
        "min_tokens": [0, 2, 10, 10**6, -1, None],
        "stop_token_ids": [[5], [], [10**9], [-1], None, "x"],
        "bad_words": [["the"], [], [""], None],
        "include_stop_str_in_output": [True, False],
        "skip_special_tokens": [True, False],
        "echo": [True, False, None],
        "suffix": ["", "end", None],
        "stream_options": [{"include_usage": True}, {}, None, {"include_usage": None}],
        "token_details": [True, False, None],
        "speculation": [
            "off", {"method": "speculative"}, {"method": "pearl", "draft_tokens": 3}, {"method": "autoregressive"},
            {"tree": "top:4x5"}, {"method": "x"}, {}, None
        ],
        "user": ["u", None],
        "store": [False, None],
        "metadata": [{}, None, {"a": "b"}],
        "service_tier": ["auto", None],
        "prompt_cache_key": ["k"],
        "unknown_field": [1, None],
        "n_predict": [5, -1],
        "typical_p": [0.5, 1],
        "mirostat": [0, 2],
        "cache_prompt": [True],
        "length_penalty": [1.0],
        "use_beam_search": [False, True],
        "return_token_ids": [True],
        "priority": [0],
        "timings_per_token": [True],
        "samplers": [["top_k"]],
        "dry_multiplier": [0.8, 0],
        "id_slot": [-1, 0],
    }
    for name in drawn.sample(sorted(every), drawn.choice([0, 0, 1, 1, 2, 3, 5])):
        body[name] = drawn.choice(every[name])
    return body


def limited(drawn, body, name="max_tokens"):
    if not chance(drawn, 0.03):
        body[name] = drawn.choice([1, 4, 16, 40, 80, 120, 200, 300, 300, 300])
    if chance(drawn, 0.02):
        body[name] = drawn.choice([0, -1, 10**6, 2**31, 2**63, 2**64, None, 1.5, "5"])
    return body


def text(drawn):
    if chance(drawn, 0.01):
        return drawn.choice(["word ", "\u00e9", "😀", "\0", "a", " ", "\n"]) * drawn.choice([1000, 30_000, 300_000])
    words = "a the fox river found lost little said and then in house Once upon time king naïve 東京 \u200d \u202e {{ }} {% %} <think> </s> <|im_end|> "
    return drawn.choice(TEXTS) if chance(drawn, 0.2) else " ".join(
        drawn.choice(words.split(" ")) for _ in range(drawn.randint(1, 30)))


def content(drawn, kind="text"):
    if chance(drawn, 0.7):
        return text(drawn)
    parts = [{"type": kind, "text": text(drawn)} for _ in range(drawn.randint(0, 3))]
    if chance(drawn, 0.15):
        parts.append(
            drawn.choice([{"type": "image_url",
                           "image_url": {"url": "data:,"}}, {"type": kind}, {"type": kind, "text": None}, {"text": "x"}, "x",
                          None, {"type": "refusal",
                                 "refusal": "no"}, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                          {"type": kind, "text": "x", "cache_control": {"type": "ephemeral"}}]))
    return drawn.choice([parts, parts, parts, None])


def arguments(drawn):
    """Returns the arguments of a call in a history, as text."""
    value = {name: Schemas(drawn).value() for name in drawn.sample(["city", "n", "id"], drawn.randint(0, 3))}
    odd = [
        "", " ", "{", '{"a": 1', "null", "[]", "3", None, {"a": 1}, "{}", '{"id": 9223372036854775807}',
        '{"id": -9223372036854775808, "n": 18446744073709551615}', '{"x": 0.1e999}', '{"a": 1, "a": 2}'
    ]
    return drawn.choice(odd) if chance(drawn, 0.3) else encode(value)


def history(drawn):
    """Returns the messages of a chat."""
    messages = []
    if chance(drawn, 0.4):
        messages.append({"role": drawn.choice(["system", "system", "developer"]), "content": content(drawn)})
    for turn in range(drawn.choice([1, 1, 1, 2, 3, 3, 12, 40 if chance(drawn, 0.1) else 2])):
        messages.append({"role": "user", "content": content(drawn)})
        kind = drawn.randrange(8)
        if kind in (0, 1, 2):
            answer = {"role": "assistant", "content": content(drawn)}
            for name in drawn.sample(
                ["refusal", "annotations", "audio", "function_call", "tool_calls", "name", "reasoning_content"],
                    drawn.choice([0, 0, 2, 6])):
                answer[name] = drawn.choice([None, None, None, [], "x"]) if chance(drawn, 0.3) else None
            messages.append(answer)
        elif kind == 3:
            calls = [{
                "id": f"call_{turn}_{number}", "type": "function",
                "function": {"name": drawn.choice(["clock", "weather"]), "arguments": arguments(drawn)}
            } for number in range(drawn.randint(1, 3))]
            messages.append({"role": "assistant", "content": drawn.choice([None, "", "Let me see."]), "tool_calls": calls})
            for call in calls[:drawn.choice([3, 3, 3, 1, 0])]:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content(drawn)})
        elif kind == 4 and chance(drawn, 0.5):
            messages.append({
                "role": drawn.choice(["system", "tool", "function", "x", "", None, 3, "User", "critic", "ipython"]),
                "content": content(drawn)
            })
    if messages[-1]["role"] != "user" and chance(drawn, 0.8):
        messages.append({"role": "user", "content": text(drawn)})
    return messages


def tools(drawn, parameters, key="parameters"):
    """Returns tools, the first with the given schema."""
    every = [{"name": "first", "description": "The first", key: parameters}, {"name": "clock"}, {
        "name": "weather", "description": None,
        key: {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    }, {"name": "empty", key: {}}, {
        "name": "pay", "strict": True, key: {
            "type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"],
            "additionalProperties": False
        }
    }]
    if key == "input_schema":
        every[1][key] = {"type": "object"}
    chosen = every[:1] + drawn.sample(every[1:], drawn.choice([0, 0, 1, 2]))
    if chance(drawn, 0.03):
        chosen.append(
            drawn.choice([{"name": ""}, {"name": "x" * 65}, {"name": "a b"}, {"name": "first"}, {"name": None}, {"name": "ü"}]))
    return chosen


def in_chat(drawn, schema):
    """Returns the fields that give a chat a schema."""
    named = {"name": "answer", "schema": schema}
    if chance(drawn, 0.5):
        named["strict"] = drawn.choice([True, False, None])
    functions = [{"type": "function", "function": tool} for tool in tools(drawn, schema)]
    odd_tool = drawn.choice([{"type": "web_search"}, {"type": "custom", "custom": {"name": "c"}},
                             {"type": "code_interpreter", "container": {}}])
    doors = [
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"response_format": {"type": "json_object", "schema": schema}},
        *in_completions(drawn, schema),
        {"tools": functions, "tool_choice": "required"},
        {"tools": functions, "tool_choice": {"type": "function", "function": {"name": "first"}}},
        {"tools": functions, "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": functions},
        {"tools": functions, "tool_choice": "auto"},
        {"tools": functions, "tool_choice": "none"},
        {"tools": functions[1:] or functions, "response_format": {"type": "json_schema", "json_schema": named}},
        {"tools": [odd_tool, *functions], "tool_choice": "required"},
    ]
    return drawn.choice(doors)


def in_completions(drawn, schema):
    return [{"json_schema": schema}, {"guided_json": schema}, {"structured_outputs": {"json": schema}},
            {drawn.choice(["guided_json", "json_schema"]): encode(schema)}]


def of_text(drawn):
    """Returns a constraint that is no schema."""
    regex, rules = drawn.choice(REGEXES) if chance(drawn, 0.7) else Schemas(drawn, odd=1).pattern(), grammar(drawn)
    choices = drawn.choice([["yes", "no"], ["a", "ab", "abc"], [""], [], ["\u00e9", "e"], ["x" * 5000],
                            [f"word {number}" for number in range(500)], ["a", "a"], [None], [1]])
    return drawn.choice([{"guided_regex": regex}, {"structured_outputs": {"regex": regex}}, {"grammar": rules},
                         {"guided_grammar": rules}, {"structured_outputs": {"grammar": rules}}, {"guided_choice": choices},
                         {"structured_outputs": {"choice": choices}}, {"response_format": {"type": "json_object"}},
                         {"structured_outputs": {"json_object": True}}, {"response_format": {"type": "text"}}, {
                             "response_format": drawn.choice([
                                 None, {"type": "x"}, {}, {"type": "json_schema"}, {"type": "regex", "pattern": "a"},
                                 {"type": "json_schema", "json_schema": {"name": "x"}}
                             ])
                         }])


def schemas(drawn):
    """Returns what draws a schema: usually one of a careful client."""
    return Schemas(drawn, odd=drawn.choice([0, 0, 0.03, 0.3]))


def random_request(seed, number):
    drawn = random.Random(f"{seed} random {number}")
    kind = drawn.choices(["schema", "text", "plain", "tokens"], [55, 18, 24, 3])[0]
    path = drawn.choices([CHAT, COMPLETIONS, MESSAGES, RESPONSES], [4, 4, 2, 2])[0]
    if kind == "tokens":
        path, body = tokens(drawn)
    elif path in (CHAT, COMPLETIONS):
        plain = kind == "schema" and chance(drawn, 0.8)
        body = limited(drawn, {"temperature": drawn.choice([0, 1, 1.5, 2])} if plain else sampling(drawn),
                       drawn.choice(["max_tokens", "max_completion_tokens"]) if path == CHAT else "max_tokens")
        if path == CHAT:
            body["messages"] = HELLO if plain else history(drawn)
        else:
            body["prompt"] = "x" if plain else drawn.choice([[5, 6, 7], [text(drawn), text(drawn)], [[5], [6, 7]]]) if chance(
                drawn, 0.15) else text(drawn)
        if kind == "text":
            body.update(of_text(drawn))
        elif kind == "schema":
            schema = schemas(drawn).root()
            body.update(in_chat(drawn, schema) if path == CHAT else drawn.choice(in_completions(drawn, schema)))
    elif path == MESSAGES:
        body = anthropic(drawn, kind)
    else:
        body = responses(drawn, kind)
    if chance(drawn, 0.25) and kind != "tokens":
        body["stream"] = True
    manner = LEAVES if chance(drawn, 0.03) else READS
    return Request(f"random {number}",
                   kind,
                   path,
                   encode(body, ascii=chance(drawn, 0.3)).encode(errors="surrogatepass"),
                   manner=manner)


def tokens(drawn):
    body = drawn.choice([{"content": text(drawn)}, {"prompt": text(drawn)}, {"messages": history(drawn)}, {"tokens": [5, 6, 700]},
                         {"tokens": [-1]}, {"tokens": None}, {"tokens": [10**9]}, {"content": None}])
    for name in drawn.sample(["add_special", "add_special_tokens", "with_pieces", "parse_special", "return_token_strs"],
                             drawn.randint(0, 3)):
        body[name] = drawn.choice([True, False, None])
    return (DETOKENIZE if "tokens" in body else TOKENIZE), body


def anthropic(drawn, kind):
    messages = []
    for turn in range(drawn.choice([1, 1, 2, 4])):
        messages.append({"role": "user", "content": drawn.choice([text(drawn), [{"type": "text", "text": text(drawn)}]])})
        if chance(drawn, 0.3):
            call = {
                "type": "tool_use", "id": f"t{turn}", "name": "clock", "input": drawn.choice([{}, {"a": 2**63 - 1}, None,
                                                                                              {"a": -2**63}, {"b": [1]}])
            }
            messages.append({"role": "assistant", "content": [{"type": "text", "text": text(drawn)}, call]})
            result = drawn.choice(["12:00", [{"type": "text", "text": "12:00"}], None, [], ""])
            messages.append({
                "role": "user", "content": [{
                    "type": "tool_result", "tool_use_id": f"t{turn}", "content": result,
                    **({"is_error": True} if chance(drawn, 0.2) else {})
                }]
            })
        elif chance(drawn, 0.3):
            messages.append({"role": "assistant", "content": text(drawn)})
        if chance(drawn, 0.1):
            messages.append({"role": "system", "content": text(drawn)})
        if chance(drawn, 0.02):
            messages.append(
                drawn.choice([{"role": "x", "content": "x"}, {"role": "user", "content": None}, {"role": "user", "content": []},
                              {"role": "user", "content": [{"type": "image"}]}, {"role": "tool", "content": "x"}]))
    if messages[-1]["role"] != "user" and chance(drawn, 0.8):
        messages.append({"role": "user", "content": "Go on."})
    body = limited(drawn, {"messages": messages, "temperature": drawn.choice([0, 0.5, 1, 1.5, 2])})
    if chance(drawn, 0.4):
        body["system"] = drawn.choice(
            [text(drawn), [{"type": "text", "text": text(drawn), "cache_control": {"type": "ephemeral"}}], None])
    if kind == "schema":
        schema = schemas(drawn).root()
        form = {"type": "json_schema", "schema": schema}
        chosen = tools(drawn, schema, "input_schema")
        body.update(
            drawn.choice([{"output_config": {"format": form}}, {"output_format": form},
                          {"tools": chosen,
                           "tool_choice": {"type": "any"}}, {"tools": chosen, "tool_choice": {"type": "tool", "name": "first"}},
                          {"tools": chosen, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, {"tools": chosen},
                          {"tools": chosen,
                           "tool_choice": {"type": "auto"}}, {"tools": chosen[1:] or chosen, "output_config": {"format": form}}]))
    every = {
        "top_p": [0.9, 0, None], "top_k": [5, 0, -1, None], "stop_sequences": [["x"], [], None,
                                                                               [""]], "metadata": [{"user_id": "u"}, None],
        "thinking": [{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"},
                     None], "service_tier": ["auto"], "seed": [-1, 3], "output_config": [{"effort": "low"}, {}, None],
        "container": [None], "context_management": [{}, None], "tools": [None, []], "tool_choice": [None, {"type": "none"}]
    }
    if kind == "plain":
        for name in drawn.sample(sorted(every), drawn.choice([0, 1, 2, 4])):
            body[name] = drawn.choice(every[name])
    return body


def responses(drawn, kind):
    items = []
    for turn in range(drawn.choice([1, 1, 2, 4])):
        items.append({"role": "user", "content": drawn.choice([text(drawn), [{"type": "input_text", "text": text(drawn)}]])})
        if chance(drawn, 0.3):
            items.append({"type": "function_call", "call_id": f"c{turn}", "name": "clock", "arguments": arguments(drawn)})
            items.append({
                "type": "function_call_output", "call_id": f"c{turn}",
                "output": drawn.choice(["12:00", [{"type": "input_text", "text": "12:00"}], ""])
            })
        elif chance(drawn, 0.3):
            items.append({
                "type": "message", "role": "assistant", "id": "m", "status": "completed",
                "content": [{"type": "output_text", "text": text(drawn), "annotations": []}]
            })
        if chance(drawn, 0.1):
            items.append(
                drawn.choice([{"type": "reasoning", "id": "r", "summary": []}, {"type": "x"},
                              {"role": "developer", "content": "x"}, {"type": "item_reference",
                                                                      "id": "x"}, {"role": "user", "content": None}]))
    body = limited(drawn,
                   {"input": text(drawn) if chance(drawn, 0.3) else items, "temperature": drawn.choice([0, 0.5, 1, 1.5, 2])},
                   "max_output_tokens")
    if kind == "schema":
        schema = schemas(drawn).root()
        functions = [{"type": "function", **tool} for tool in tools(drawn, schema)]
        body.update(
            drawn.choice([{"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}},
                          {"text": {"format": {"type": "json_schema", "name": "answer",
                                               "schema": schema}}}, {"tools": functions, "tool_choice": "required"},
                          {"tools": functions, "tool_choice": {"type": "function", "name": "first"}}, {"tools": functions}]))
    every = {
        "instructions": ["Be brief.", None, ""], "top_p": [0.5, None],
        "text": [{"format": {"type": "text"}}, {"format": {"type": "json_object"}}, {"verbosity": "low"},
                 None], "reasoning": [{"effort": "low"}, None, {}], "store": [False, None], "previous_response_id": [None, "x"],
        "include": [[], None], "truncation": ["auto", "disabled"], "metadata": [{}, None], "background": [False, True, None],
        "max_tool_calls": [1], "top_logprobs": [0, 3], "tools": [None, []]
    }
    if kind == "plain":
        for name in drawn.sample(sorted(every), drawn.choice([0, 1, 2, 4])):
            body[name] = drawn.choice(every[name])
    return body
