"""Drives a running `forerun serve` with the official clients: `openai`, `anthropic`, LangChain, and OpenAI's Agents SDK.

Usage: check_clients.py URL        (pip install openai anthropic langchain-openai openai-agents)
"""

import json
import sys
import threading
from typing import Literal

import agents
import anthropic
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, Field

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
model = client.models.list().data[0].id
hello = [{"role": "user", "content": "Hello"}]

# A chat, whole and as a stream.
options = {"model": model, "messages": hello, "max_completion_tokens": 20, "temperature": 0}
answer = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
text = answer.choices[0].message.content
assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
streamed, usage = "", None
with client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}) as stream:
    for chunk in stream:
        if chunk.choices:
            streamed += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
assert streamed == text and usage.completion_tokens == answer.usage.completion_tokens
print("chat:", repr(text), answer.choices[0].finish_reason)

# Several prompts and choices.
prompts = ["Once upon a time", "The king"]
several = client.completions.create(
    model=model, prompt=prompts, max_tokens=12, n=2, temperature=1, seed=5, logprobs=2, stop=["\n\n"]
)
assert [choice.index for choice in several.choices] == [0, 1, 2, 3]

# Errors have OpenAI's form.
for wrong, error, param in [
    ({"model": "x", "messages": hello}, NotFoundError, "model"),
    ({"model": model, "messages": []}, BadRequestError, "messages"),
    ({"model": model, "messages": hello, "temperature": -3}, BadRequestError, "temperature"),
]:
    try:
        client.chat.completions.create(**wrong)
    except error as caught:
        assert caught.body["param"] == param, caught.body
    else:
        sys.exit(f"no error for {param}")

# A client that goes away in the middle of an answer.
stream = client.completions.create(model=model, prompt="Once", max_tokens=400, stream=True)
next(iter(stream))
stream.close()

# Many clients at once: equal requests have equal answers.
texts = [None] * 64


def ask(number):
    patient = client.with_options(max_retries=8)
    completion = patient.completions.create(
        model=model, prompt="Once upon a time, there was", max_tokens=30, temperature=0.8, seed=number % 4
    )
    texts[number] = completion.choices[0].text


threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert all(text == texts[number % 4] for number, text in enumerate(texts)) and None not in texts
print("64 clients at once: equal requests have equal answers")

# Tools: calls that must be made, whole and as a stream.
parameters = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
function = {"name": "get_weather", "description": "Returns the weather", "parameters": parameters}


def check_weather(arguments):
    assert arguments["city"] in ("Paris", "Rome") and 1 <= arguments["days"] <= 9 and len(arguments) == 2, arguments


options = {"model": model, "messages": hello, "max_completion_tokens": 200, "seed": 1, "parallel_tool_calls": False,
           "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
called = client.chat.completions.create(**options).choices[0]
assert called.finish_reason == "tool_calls" and called.message.content is None
call = called.message.tool_calls[0]
check_weather(json.loads(call.function.arguments))
with client.chat.completions.stream(**options) as stream:
    final = stream.get_final_completion().choices[0]
assert final.message.tool_calls[0].function.arguments == call.function.arguments
messages = hello + [called.message, {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
client.chat.completions.create(model=model, messages=messages, tools=options["tools"], max_completion_tokens=10)
print("tools:", call.function.arguments)


# A format as a class.
class Person(BaseModel):
    # A small model might never end a name.
    name: Literal["Ann", "Bob"]
    age: int = Field(ge=0, le=120)


options = {"model": model, "messages": hello, "max_completion_tokens": 300, "temperature": 0}
parsed = client.chat.completions.parse(**options, response_format=Person).choices[0].message.parsed
print("format:", parsed)

# The Responses API.
options = {"model": model, "input": "Hello", "max_output_tokens": 20, "temperature": 0}
response = client.responses.create(**options)
with client.responses.stream(**options) as stream:
    events = list(stream)
assert response.output_text == text, (response.output_text, text)
assert events[-1].response.output_text == text and events[-1].type == f"response.{response.status}", events[-1]
response = client.responses.create(model=model, input="Hello", tools=[{"type": "function", **function, "strict": True}],
                                   tool_choice="required", parallel_tool_calls=False)
check_weather(json.loads(response.output[0].arguments))
# Of a conversation that is longer than the context, the latest turns are answered.
turns = [{"role": role, "content": "And then? " * 20} for role in ("user", "assistant")] * (client.models.list().data[0].max_model_len // 40)
long = {"model": model, "input": turns + hello, "max_output_tokens": 20, "temperature": 0}
shortened = client.responses.with_raw_response.create(**long, truncation="auto")
assert int(shortened.headers["forerun-messages-left-out"]) % 2 == 0
assert shortened.parse().truncation == "auto" and shortened.parse().usage.output_tokens > 0
try:
    client.responses.create(**long)
except BadRequestError as refused:
    assert refused.code == "context_length_exceeded" and refused.param == "input", refused.body
else:
    sys.exit("no error for a conversation that is too long")
print("responses:", len(events), "events")

# Anthropic's package.
claude = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
# Its newest versions have no argument for the temperature.
options = {"model": model, "max_tokens": 20, "messages": hello, "extra_body": {"temperature": 0}}
message = claude.messages.create(**options)
assert message.content[0].text == text and message.stop_reason in ("max_tokens", "end_turn", "stop_sequence")
with claude.messages.stream(**options) as stream:
    assert "".join(stream.text_stream) == text
    assert stream.get_final_message().usage.output_tokens == message.usage.output_tokens
counted = claude.messages.count_tokens(model=model, messages=hello).input_tokens
assert counted == message.usage.input_tokens + message.usage.cache_read_input_tokens
tool = {"name": "get_weather", "description": "Returns the weather", "input_schema": parameters}
options = {"model": model, "max_tokens": 200, "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
called = claude.messages.create(**options, messages=hello)
assert called.stop_reason == "tool_use"
check_weather(called.content[0].input)
turns = hello + [{"role": "assistant", "content": called.content}, {"role": "user", "content": [
    {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "Rain."}]}]
claude.messages.create(model=model, max_tokens=10, tools=[tool], messages=turns)
try:
    claude.messages.create(model=model, max_tokens=0, messages=hello)
except anthropic.BadRequestError as caught:
    assert caught.body["error"]["type"] == "invalid_request_error" and "max_tokens" in str(caught), caught
else:
    sys.exit("no error for max_tokens")
print("anthropic:", called.content[0].input)



# Its formats, without bounds of numbers, which the package leaves out. A message of the system may be anywhere.
class Pet(BaseModel):
    name: Literal["Ann", "Bob"]
    kind: Literal["cat", "dog"]


reminded = hello + [{"role": "assistant", "content": "Hi."}, {"role": "system", "content": "5000 tokens left"}] + hello
parsed = claude.messages.parse(model=model, max_tokens=300, messages=reminded, output_format=Pet)
assert isinstance(parsed.parsed_output, Pet), parsed
form = {"format": {"type": "json_schema", "schema": parameters}}
with claude.messages.stream(model=model, max_tokens=300, messages=hello, output_config=form) as stream:
    check_weather(json.loads("".join(stream.text_stream)))
print("anthropic's format:", parsed.parsed_output)

# LangChain.
chain = ChatOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", model=model, max_tokens=200, temperature=0, max_retries=0)
whole = chain.invoke("Hello", max_tokens=20).content
assert "".join(chunk.content for chunk in chain.stream("Hello", max_tokens=20)) == whole == text
bound = chain.bind_tools([options["tools"][0] | {"parameters": parameters}], tool_choice="required", parallel_tool_calls=False)
check_weather(bound.invoke("Hello").tool_calls[0]["args"])
person = chain.with_structured_output(Person, method="json_schema").invoke("Hello")
assert isinstance(person, Person)
# More prompts than a server answers at a time wait for their turn.
batch = chain.batch(["Hello"] * 20, max_tokens=20)
assert [answer.content for answer in batch] == [text] * 20, batch
people = chain.with_structured_output(Person, method="json_schema").batch(["Hello"] * 20)
assert people == [person] * 20, people
print("langchain:", person, "and a batch of 20")


# OpenAI's Agents SDK: an agent with a tool and a format. It calls the tool, or ends with the format.
agents.set_tracing_disabled(True)
cities = []


@agents.function_tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Returns the weather."""
    cities.append(city)
    return "Rain."


chats = agents.OpenAIChatCompletionsModel(model, AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0))
agent = agents.Agent(name="Helper", instructions="Be brief.", model=chats, tools=[get_weather], output_type=Person)
ended = 0
for seed in range(8):
    agent.model_settings = agents.ModelSettings(max_tokens=200, temperature=1, extra_args={"seed": seed})
    try:
        final = agents.Runner.run_sync(agent, "Hello", max_turns=4).final_output
    except agents.MaxTurnsExceeded:
        # A small model may call again and again.
        continue
    assert isinstance(final, Person), final
    ended += 1
assert ended or cities, "no agent has called its tool or ended"
assert set(cities) <= {"Paris", "Rome"}, cities
print("agents:", len(cities), "calls and", ended, "answers of 8 agents")
