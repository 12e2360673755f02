"""Random requests to a server. A request depends only on the seed and its number."""

import dataclasses
import random

from schemas import REGEXES, TEXTS, Schemas, encode, grammar

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
COUNT, TOKENIZE, DETOKENIZE = "/v1/messages/count_tokens", "/tokenize", "/detokenize"
# How a client takes an answer.
READS, LEAVES = "reads", "leaves"

HELLO = [{"role": "user", "content": "Hello"}]
WORDS = ["a", "the", "fox", "river", "found", "little", "said", "and", "then", "Once", "upon", "time", "king", "naïve", "東京", "\u200d",
         "\u202e", "{{", "}}", "{%", "%}", "<think>", "</s>", "<|im_end|>", ""]

# Fields of completions, and values that are right, wrong, or odd.
FIELDS = {
    "top_p": [0, 0.1, 0.9, 1, 1.0, -1, 2, None],
    "top_k": [-1, 0, 1, 5, 50, 10**6, -2, 2**40, None],
    "min_p": [0, 0.05, 1, -1, 2, None],
    "presence_penalty": [-2, 0, 0.5, 2, 3, None],
    "frequency_penalty": [-2, 0, 0.5, 2, -5, None],
    "repetition_penalty": [0.5, 1, 1.3, 2, 0, -1, 1e10],
    "repeat_penalty": [1, 1.1],
    "seed": [-1, 0, 1, 7, 2**31, 2**53 + 1, 2**63 - 1, -2**63, 2**63, 1.5, "7", None],
    "logit_bias": [{}, {"5": 5}, {"5": -100, "6": 100}, {"1": 1e9}, {"x": 1}, {"999999999": 1}, [], None,
                   {str(token): 3 for token in range(300)}],
    "n": [1, 2, 3, 5, 0, -1, 12, 100, 1000, None],
    "best_of": [1, 2, 4, 0, None],
    "stop": ["\n", ["a", "e"], [], "", [""], ["é" * 100], ["x"] * 20, None, [None]],
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
    "speculation": ["off", {"method": "speculative"}, {"method": "pearl", "draft_tokens": 3}, {"method": "autoregressive"},
                    {"tree": "top:4x5"}, {"method": "x"}, {}, None],
    "metadata": [{}, None, {"a": "b"}],
    "unknown_field": [1, None],
    "n_predict": [5, -1],
    "mirostat": [0, 2],
    "use_beam_search": [False, True],
    "dry_multiplier": [0.8, 0],
    "cache_prompt": [True], "length_penalty": [1.0], "return_token_ids": [True], "priority": [0], "timings_per_token": [True],
    "samplers": [["top_k"]], "id_slot": [-1, 0], "typical_p": [0.5, 1], "user": ["u", None], "store": [False, None],
    "service_tier": ["auto", None], "prompt_cache_key": ["k"],
}
FIELDS_OF_MESSAGES = {
    "top_p": [0.9, 0, None], "top_k": [5, 0, -1, None], "stop_sequences": [["x"], [], None, [""]], "metadata": [{"user_id": "u"}, None],
    "thinking": [{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, None], "service_tier": ["auto"], "seed": [-1, 3],
    "output_config": [{"effort": "low"}, {}, None], "container": [None], "context_management": [{}, None], "tools": [None, []],
    "tool_choice": [None, {"type": "none"}],
}
FIELDS_OF_RESPONSES = {
    "instructions": ["Be brief.", None, ""], "top_p": [0.5, None], "reasoning": [{"effort": "low"}, None, {}], "store": [False, None],
    "text": [{"format": {"type": "text"}}, {"format": {"type": "json_object"}}, {"verbosity": "low"}, None], "tools": [None, []],
    "previous_response_id": [None, "x"], "include": [[], None], "truncation": ["auto", "disabled"], "metadata": [{}, None],
    "background": [False, True, None], "max_tool_calls": [1], "top_logprobs": [0, 3],
}


@dataclasses.dataclass
class Request:
    number: str
    kind: str
    path: str
    body: bytes
    content_type: str = "application/json"
    manner: str = READS


def chance(drawn, share):
    return drawn.random() < share


def some(drawn, fields, counts):
    """Returns some fields, each with one of its values."""
    return {name: drawn.choice(fields[name]) for name in drawn.sample(sorted(fields), drawn.choice(counts))}


def random_request(seed, number):
    drawn = random.Random(f"{seed} random {number}")
    kind = drawn.choices(["schema", "text", "plain", "tokens"], [55, 15, 27, 3])[0]
    paths = [CHAT, COMPLETIONS] if kind == "text" else [CHAT, CHAT, COMPLETIONS, COMPLETIONS, MESSAGES, RESPONSES]
    path = drawn.choice(paths)
    if kind == "tokens":
        path, body = of_tokens(drawn)
    else:
        body = {MESSAGES: of_messages, RESPONSES: of_responses}.get(path, of_completions)(drawn, path, kind)
        if chance(drawn, 0.25):
            body["stream"] = True
    data = encode(body, ascii=chance(drawn, 0.3)).encode(errors="surrogatepass")
    return Request(f"random {number}", kind, path, data, manner=LEAVES if chance(drawn, 0.03) else READS)


# ---- Parts of requests.

def limit(drawn):
    """Returns a largest number of tokens."""
    if chance(drawn, 0.03):
        return drawn.choice([0, -1, 10**6, 2**31, 2**63, 2**64, None, 1.5, "5"])
    return drawn.choice([1, 4, 16, 40, 80, 120, 200, 300, 300, 300])


def heat(drawn):
    """Returns a temperature. Most are hot, so that answers are random texts."""
    return drawn.choice([0, 0, 0.3, 1, 1.5, 1.5, 2, 2])


def text(drawn):
    if chance(drawn, 0.01):
        return drawn.choice(["word ", "é", "😀", "\0", "a", " ", "\n"]) * drawn.choice([1000, 30_000, 300_000])
    return drawn.choice(TEXTS) if chance(drawn, 0.2) else " ".join(drawn.choice(WORDS) for _ in range(drawn.randint(1, 30)))


def content(drawn):
    """Returns the content of a message: a text, parts, or null."""
    if chance(drawn, 0.7):
        return text(drawn)
    parts = [{"type": "text", "text": text(drawn)} for _ in range(drawn.randint(0, 3))]
    odd = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
           {"type": "text"}, {"type": "text", "text": None}, {"text": "x"}, "x", None, {"type": "refusal", "refusal": "no"},
           {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    if chance(drawn, 0.15):
        parts.append(drawn.choice(odd))
    return drawn.choice([parts, parts, parts, None])


def arguments(drawn):
    """Returns the arguments of a call in a history, as text."""
    odd = ["", " ", "{", '{"a": 1', "null", "[]", "3", None, {"a": 1}, "{}", '{"id": 9223372036854775807}', '{"x": 0.1e999}',
           '{"id": -9223372036854775808, "n": 18446744073709551615}', '{"a": 1, "a": 2}']
    value = {name: Schemas(drawn).value() for name in drawn.sample(["city", "n", "id"], drawn.randint(0, 3))}
    return drawn.choice(odd) if chance(drawn, 0.3) else encode(value)


def history(drawn):
    """Returns the messages of a chat."""
    messages = []
    if chance(drawn, 0.4):
        messages.append({"role": drawn.choice(["system", "system", "developer"]), "content": content(drawn)})
    for turn in range(drawn.choice([1, 1, 1, 2, 2, 3, 3, 12])):
        messages.append({"role": "user", "content": content(drawn)})
        kind = drawn.choice(["none", "none", "answer", "answer", "answer", "call", "call", "odd"])
        if kind == "answer":
            absent = ["refusal", "annotations", "audio", "function_call", "tool_calls", "name", "reasoning_content"]
            nulls = dict.fromkeys(drawn.sample(absent, drawn.choice([0, 0, 2, 6])))
            messages.append({"role": "assistant", "content": content(drawn), **nulls})
        elif kind == "call":
            functions = [{"name": drawn.choice(["clock", "weather"]), "arguments": arguments(drawn)} for _ in range(drawn.randint(1, 3))]
            calls = [{"id": f"call_{turn}_{number}", "type": "function", "function": one} for number, one in enumerate(functions)]
            messages.append({"role": "assistant", "content": drawn.choice([None, "", "Let me see."]), "tool_calls": calls})
            results = calls[:drawn.choice([3, 3, 3, 1, 0])]
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": content(drawn)} for call in results]
        elif kind == "odd" and chance(drawn, 0.5):
            role = drawn.choice(["system", "tool", "function", "x", "", None, 3, "User", "critic", "ipython"])
            messages.append({"role": role, "content": content(drawn)})
    if messages[-1]["role"] != "user" and chance(drawn, 0.8):
        messages.append({"role": "user", "content": text(drawn)})
    return messages


def tools(drawn, schema, key="parameters"):
    """Returns tools, the first with the given schema."""
    weather = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    pay = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"],
           "additionalProperties": False}
    others = [{"name": "clock", **({key: {"type": "object"}} if key == "input_schema" else {})}, {"name": "empty", key: {}},
              {"name": "weather", "description": None, key: weather}, {"name": "pay", "strict": True, key: pay}]
    chosen = [{"name": "first", "description": "The first", key: schema}, *drawn.sample(others, drawn.choice([0, 0, 1, 2]))]
    if chance(drawn, 0.03):
        chosen.append({"name": drawn.choice(["", "x" * 65, "a b", "first", None, "ü"]), key: {}})
    return chosen


def schemas(drawn):
    """Returns what draws a schema: usually one of a careful client."""
    return Schemas(drawn, odd=drawn.choice([0, 0, 0.03, 0.3]))


# ---- Requests of each API.

def of_completions(drawn, path, kind):
    most = drawn.choice(["max_tokens", "max_completion_tokens"]) if path == CHAT else "max_tokens"
    body = {"temperature": heat(drawn), most: limit(drawn)}
    # Most answers with a schema are compared with it, so other fields do not begin or end them.
    simple = kind == "schema" and chance(drawn, 0.8)
    if not simple:
        body.update(some(drawn, FIELDS, [0, 0, 1, 1, 2, 3, 5]))
    if path == CHAT:
        body["messages"] = HELLO if simple else history(drawn)
    elif simple or chance(drawn, 0.85):
        body["prompt"] = text(drawn)
    else:
        body["prompt"] = drawn.choice([[5, 6, 7], [text(drawn), text(drawn)], [[5], [6, 7]]])
    if kind == "schema":
        schema = schemas(drawn).root()
        body.update(in_chat(drawn, schema) if path == CHAT else in_completion(drawn, schema))
    elif kind == "text":
        body.update(of_text(drawn))
    return body


def in_completion(drawn, schema):
    """Returns the field that gives a completion a schema."""
    return drawn.choice([{"json_schema": schema}, {"guided_json": schema}, {"structured_outputs": {"json": schema}},
                         {drawn.choice(["guided_json", "json_schema"]): encode(schema)}])


def in_chat(drawn, schema):
    """Returns the fields that give a chat a schema."""
    named = {"name": "answer", "schema": schema, **some(drawn, {"strict": [True, False, None]}, [0, 1])}
    form = {"response_format": {"type": "json_schema", "json_schema": named}}
    functions = [{"type": "function", "function": tool} for tool in tools(drawn, schema)]
    first = {"type": "function", "function": {"name": "first"}}
    other = drawn.choice([{"type": "web_search"}, {"type": "custom", "custom": {"name": "c"}}])
    return drawn.choice([
        form, form, {"response_format": {"type": "json_object", "schema": schema}}, in_completion(drawn, schema),
        in_completion(drawn, schema), {"tools": functions, "tool_choice": "required"}, {"tools": functions, "tool_choice": first},
        {"tools": functions, "tool_choice": "required", "parallel_tool_calls": False}, {"tools": functions},
        {"tools": functions, "tool_choice": "required", **form}, {"tools": functions[1:] or functions, **form},
        {"tools": functions, "tool_choice": drawn.choice(["auto", "none"])},
        {"tools": [other, *functions], "tool_choice": "required"},
    ])


def of_text(drawn):
    """Returns a constraint that is no schema."""
    regex, rules = drawn.choice(REGEXES) if chance(drawn, 0.7) else Schemas(drawn, odd=1).pattern(), grammar(drawn)
    choices = drawn.choice([["yes", "no"], ["a", "ab", "abc"], [""], [], ["é", "e"], ["x" * 5000], ["a", "a"], [None], [1],
                            [f"word {number}" for number in range(500)]])
    form = drawn.choice([None, {"type": "x"}, {}, {"type": "json_schema"}, {"type": "regex", "pattern": "a"},
                         {"type": "json_schema", "json_schema": {"name": "x"}}])
    return drawn.choice([
        {"guided_regex": regex}, {"structured_outputs": {"regex": regex}}, {"grammar": rules}, {"guided_grammar": rules},
        {"structured_outputs": {"grammar": rules}}, {"guided_choice": choices}, {"structured_outputs": {"choice": choices}},
        {"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}, {"response_format": {"type": "text"}},
        {"response_format": form},
    ])


def of_messages(drawn, _path, kind):
    messages = []
    for turn in range(drawn.choice([1, 1, 2, 4])):
        messages.append({"role": "user", "content": drawn.choice([text(drawn), [{"type": "text", "text": text(drawn)}]])})
        if chance(drawn, 0.3):
            given = drawn.choice([{}, {"a": 2**63 - 1}, None, {"a": -2**63}, {"b": [1]}])
            call = {"type": "tool_use", "id": f"t{turn}", "name": "clock", "input": given}
            messages.append({"role": "assistant", "content": [{"type": "text", "text": text(drawn)}, call]})
            result = drawn.choice(["12:00", [{"type": "text", "text": "12:00"}], None, [], ""])
            block = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": result}
            messages.append({"role": "user", "content": [block | some(drawn, {"is_error": [True, False]}, [0, 1])]})
        elif chance(drawn, 0.3):
            messages.append({"role": "assistant", "content": text(drawn)})
        if chance(drawn, 0.1):
            messages.append({"role": "system", "content": text(drawn)})
        if chance(drawn, 0.02):
            messages.append(drawn.choice([{"role": "x", "content": "x"}, {"role": "user", "content": None}, {"role": "user", "content": []},
                                          {"role": "user", "content": [{"type": "image"}]}, {"role": "tool", "content": "x"}]))
    if messages[-1]["role"] != "user" and chance(drawn, 0.8):
        messages.append({"role": "user", "content": "Go on."})
    body = {"messages": messages, "temperature": heat(drawn), "max_tokens": limit(drawn)}
    if chance(drawn, 0.4):
        body["system"] = drawn.choice([text(drawn), [{"type": "text", "text": text(drawn), "cache_control": {"type": "ephemeral"}}], None])
    if kind == "plain":
        return body | some(drawn, FIELDS_OF_MESSAGES, [0, 1, 2, 4])
    schema = schemas(drawn).root()
    form, chosen = {"type": "json_schema", "schema": schema}, tools(drawn, schema, "input_schema")
    return body | drawn.choice([
        {"output_config": {"format": form}}, {"output_format": form}, {"tools": chosen, "tool_choice": {"type": "any"}},
        {"tools": chosen, "tool_choice": {"type": "tool", "name": "first"}}, {"tools": chosen},
        {"tools": chosen, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tools": chosen, "tool_choice": {"type": "auto"}},
        {"tools": chosen[1:] or chosen, "output_config": {"format": form}},
    ])


def of_responses(drawn, _path, kind):
    items = []
    for turn in range(drawn.choice([1, 1, 2, 4])):
        items.append({"role": "user", "content": drawn.choice([text(drawn), [{"type": "input_text", "text": text(drawn)}]])})
        if chance(drawn, 0.3):
            items.append({"type": "function_call", "call_id": f"c{turn}", "name": "clock", "arguments": arguments(drawn)})
            result = drawn.choice(["12:00", [{"type": "input_text", "text": "12:00"}], ""])
            items.append({"type": "function_call_output", "call_id": f"c{turn}", "output": result})
        elif chance(drawn, 0.3):
            parts = [{"type": "output_text", "text": text(drawn), "annotations": []}]
            items.append({"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": parts})
        if chance(drawn, 0.1):
            items.append(drawn.choice([{"type": "reasoning", "id": "r", "summary": []}, {"type": "x"}, {"role": "developer", "content": "x"},
                                       {"type": "item_reference", "id": "x"}, {"role": "user", "content": None}]))
    body = {"input": text(drawn) if chance(drawn, 0.3) else items, "temperature": heat(drawn), "max_output_tokens": limit(drawn)}
    if kind == "plain":
        return body | some(drawn, FIELDS_OF_RESPONSES, [0, 1, 2, 4])
    schema = schemas(drawn).root()
    form = {"type": "json_schema", "name": "answer", "schema": schema, **some(drawn, {"strict": [True, False]}, [0, 1])}
    functions = [{"type": "function", **tool} for tool in tools(drawn, schema)]
    return body | drawn.choice([
        {"text": {"format": form}}, {"text": {"format": form}}, {"tools": functions, "tool_choice": "required"}, {"tools": functions},
        {"tools": functions, "tool_choice": {"type": "function", "name": "first"}},
        {"tools": functions[1:] or functions, "text": {"format": form}},
    ])


def of_tokens(drawn):
    """Returns the path and the body of a request about tokens."""
    body = drawn.choice([{"content": text(drawn)}, {"prompt": text(drawn)}, {"messages": history(drawn)}, {"tokens": [5, 6, 700]},
                         {"tokens": [-1]}, {"tokens": None}, {"tokens": [10**9]}, {"content": None}])
    flags = ["add_special", "add_special_tokens", "with_pieces", "parse_special", "return_token_strs"]
    body |= some(drawn, {name: [True, False, None] for name in flags}, [0, 1, 2, 3])
    return (DETOKENIZE if "tokens" in body else TOKENIZE), body
