"""Drives a running `forerun serve` with the official `openai` package.

Usage: check_clients.py URL        (pip install openai)
"""

import sys
import threading

from openai import BadRequestError, NotFoundError, OpenAI

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
