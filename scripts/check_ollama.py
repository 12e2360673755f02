"""Drives a running `forerun serve` with ollama's package for Python.

Usage: check_ollama.py URL        (pip install ollama==0.6.3)
"""

import asyncio
import json
import sys
from typing import Literal

import ollama
from pydantic import BaseModel

client = ollama.Client(host=sys.argv[1])
model = client.list().models[0].model
options = {"num_predict": 20, "temperature": 0}
hello = [{"role": "user", "content": "Hello"}]

# A chat, whole and as a stream.
answer = client.chat(model, hello, options=options)
text = answer.message.content
assert answer.done and answer.eval_count <= 20 and answer.total_duration >= answer.eval_duration, answer
chunks = list(client.chat(model, hello, options=options, stream=True))
assert "".join(chunk.message.content or "" for chunk in chunks) == text
assert chunks[-1].done_reason == answer.done_reason and not any(chunk.done for chunk in chunks[:-1])

# The same with a prompt, and without a template.
whole = client.generate(model, "Hello", options=options)
assert whole.response == text
stream = client.generate(model, "Hello", options=options, stream=True)
assert "".join(chunk.response for chunk in stream) == text
assert client.generate(model, "Once upon a time", raw=True, options=options).response


async def chat():
    parts = [part async for part in await ollama.AsyncClient(host=sys.argv[1]).chat(model, hello, options=options, stream=True)]
    return "".join(part.message.content or "" for part in parts)


assert asyncio.run(chat()) == text
print("chat:", repr(text))


# A format, as a schema and as any object.
class Pet(BaseModel):
    name: Literal["Ann", "Bob"]
    kind: Literal["cat", "dog"]


long = {"num_predict": 300, "temperature": 0}
pet = Pet.model_validate_json(client.chat(model, hello, format=Pet.model_json_schema(), options=long).message.content)
found = client.generate(model, "Hello", format="json", options=long)
assert found.done_reason == "length" or isinstance(json.loads(found.response), dict)
print("format:", pet)


# A function as a tool. A small model may answer without it.
def get_weather(city: str) -> str:
    """Returns the weather.

    Args:
        city: The city
    """
    return "Rain."


called = client.chat(model, hello, tools=[get_weather], options=options)
for call in called.message.tool_calls or []:
    assert call.function.name == "get_weather" and isinstance(call.function.arguments, dict), call
call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
turns = hello + [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "Rain.", "tool_name": "get_weather"}]
assert client.chat(model, turns, tools=[get_weather], options=options).done

# What the server says of its models.
shown = client.show(model)
context = next(value for name, value in shown.modelinfo.items() if name.endswith(".context_length"))

# Of a conversation that is longer than the context, the latest turns are answered.
turns = [{"role": role, "content": "And then? " * 20} for role in ("user", "assistant")] * (context // 40)
assert 0 < client.chat(model, turns + hello, options=options).prompt_eval_count < context

assert "completion" in shown.capabilities and shown.modelinfo, shown
assert client.generate(model, "").done_reason == "load"
assert [one.model for one in client.ps().models] == [model]

# Errors.
for refused, status, word in [
    (lambda: client.chat("nothing", hello), 404, "nothing"),
    (lambda: client.chat(model, hello, options={"mirostat": 2}), 400, "mirostat"),
    (lambda: client.generate(model, "a", suffix="b"), 400, "suffix"),
    (lambda: client.embed(model, "a"), 400, "embeddings"),
    (lambda: client.pull("nothing"), 404, "started"),
]:
    try:
        refused()
    except ollama.ResponseError as error:
        assert error.status_code == status and word in error.error, (error.status_code, error.error)
    else:
        sys.exit(f"no error that names {word}")
print("ollama:", client.show(model).details)
