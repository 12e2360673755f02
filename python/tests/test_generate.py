"""Answers: their forms, their options, and that they are the same everywhere."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import forerun
import pytest
from conftest import PROMPT
from forerun import (
    LLM,
    FinishedEvent,
    SamplingParams,
    StructuredOutputsParams,
    TextEvent,
    TokenEvent,
)

GREEDY = SamplingParams(temperature=0, max_tokens=40)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=11, max_tokens=60)


def run(command: str, *options: str) -> dict[str, Any]:
    line = [command, "generate", "--prompt", PROMPT, "--json", *options]
    output = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    answer: dict[str, Any] = json.loads(output)
    return answer


def test_a_story_by_default(llm: LLM, command: str) -> None:
    [output] = llm.generate(PROMPT)
    answer = run(command)
    assert output.text == answer["text"] and output.outputs[0].token_ids == answer["tokens"]
    assert output.outputs[0].finish_reason == "stop" and len(output.text) > 200


@pytest.mark.parametrize(
    ("params", "options"),
    [
        (GREEDY, ["--temperature", "0", "-n", "40"]),
        (SEEDED, ["--temperature", "0.8", "--top-p", "0.9", "--seed", "11", "-n", "60"]),
    ],
)
def test_texts_equal_those_of_the_command_and_the_server(
    llm: LLM, command: str, params: SamplingParams, options: list[str]
) -> None:
    [output] = llm.generate(PROMPT, params)
    assert output.text == run(command, *options)["text"]
    with subprocess.Popen(
        [command, "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            body = {
                "prompt": PROMPT,
                "max_tokens": params.max_tokens,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": 0,
                "min_p": 0,
                "repetition_penalty": 1,
                "seed": params.seed,
            }
            request = urllib.request.Request(
                f"{address}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as response:
                answer = json.load(response)
            assert answer["choices"][0]["text"] == output.text
        finally:
            server.terminate()


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "pearl", "dsi", "ssd", "auto"])
def test_every_method_gives_the_same_text(llm: LLM, method: str) -> None:
    expected = [output.text for output in llm.generate([PROMPT, "The fox"], SEEDED)]
    with LLM(method=method) as other:
        assert other.method == method
        assert [output.text for output in other.generate([PROMPT, "The fox"], SEEDED)] == expected


def test_prompts_have_several_forms(llm: LLM) -> None:
    tokens = llm.encode(PROMPT)
    expected = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
    forms: list[Any] = [
        [PROMPT],
        tokens,
        [tokens],
        {"prompt": PROMPT},
        {"prompt_token_ids": tokens},
    ]
    for form in forms:
        [output] = llm.generate(form, GREEDY)
        assert output.outputs[0].token_ids == expected and output.prompt_token_ids == tokens
    mixed: list[Any] = [PROMPT, tokens, {"prompt": "The fox"}]
    outputs = llm.generate(mixed, [GREEDY, SEEDED, GREEDY])
    assert [output.prompt for output in outputs] == [PROMPT, None, "The fox"]
    assert outputs[0].outputs[0].token_ids == expected
    assert llm.generate([], GREEDY) == []


def test_several_answers_have_seeds_of_their_own(llm: LLM) -> None:
    [output] = llm.generate(PROMPT, SEEDED.replace(n=3))
    assert [one.seed for one in output.outputs] == [11, 12, 13]
    assert [one.index for one in output.outputs] == [0, 1, 2]
    [second] = llm.generate(PROMPT, SEEDED.replace(seed=12))
    assert output.outputs[1].text == second.text


def test_answers_say_where_tokens_come_from(llm: LLM) -> None:
    # Drafts of an automatic length pause while they do not pay.
    output = llm.generate(PROMPT, GREEDY.replace(draft_tokens=4))[0].outputs[0]
    assert len(output.origins) == len(output.token_ids) == 40 and output.finish_reason == "length"
    assert set(output.origins) <= {"draft", "correction", "bonus", "plain"}
    accepted = output.origins.count("draft")
    assert accepted > 0 and accepted == output.statistics.accepted_tokens
    assert "".join(text for text, origin in output.segments if origin != "rejected") == output.text
    assert output.statistics.draft_tokens >= accepted and output.statistics.target_forwards > 0
    assert 0 < output.timings.first_token_seconds <= output.timings.total_seconds
    assert "tokens/s" in output.summary and "target" in output.timeline("text")
    assert json.loads(output.timeline("perfetto"))
    assert output.timeline().startswith("<svg")


def test_notebooks_show_drafts_and_timeline(llm: LLM) -> None:
    [output] = llm.generate("A <b> fox", GREEDY.replace(draft_tokens=4))
    html = output._repr_html_()
    assert "A &lt;b&gt; fox" in html and "#1a7f37" in html and "<svg" in html
    assert re.sub("<[^>]*>", "", html).count("drafted and accepted") == 1


def test_outputs_can_be_copied_and_pickled(llm: LLM) -> None:
    [output] = llm.generate(PROMPT, GREEDY)
    for other in (copy.deepcopy(output), pickle.loads(pickle.dumps(output))):
        assert other == output and other.outputs[0].timeline() == ""


def test_log_probabilities(llm: LLM) -> None:
    output = llm.generate(PROMPT, GREEDY.replace(logprobs=2))[0].outputs[0]
    assert output.logprobs is not None and len(output.logprobs) == 40
    for token, entries in zip(output.token_ids, output.logprobs, strict=True):
        # A greedy token is the most probable one.
        assert entries[token].rank == 1 and len(entries) == 2
        assert entries[token].logprob == max(entry.logprob for entry in entries.values())
    total = sum(
        entries[token].logprob
        for token, entries in zip(output.token_ids, output.logprobs, strict=True)
    )
    assert output.cumulative_logprob == pytest.approx(total)
    assert llm.generate(PROMPT, GREEDY)[0].outputs[0].logprobs is None


def test_stops(llm: LLM) -> None:
    whole = llm.generate(PROMPT, GREEDY)[0].outputs[0]
    stopped = llm.generate(PROMPT, GREEDY.replace(stop=["zebra", " a "]))[0].outputs[0]
    assert stopped.text == whole.text.split(" a ")[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", " a ")
    token = whole.token_ids[5]
    ended = llm.generate(PROMPT, GREEDY.replace(stop_token_ids=[token]))[0].outputs[0]
    assert ended.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", token)
    longer = llm.generate(PROMPT, GREEDY.replace(max_tokens=400, ignore_eos=True))[0].outputs[0]
    assert len(longer.token_ids) == 400


def test_biases_and_penalties(llm: LLM) -> None:
    first = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids[0]
    other = llm.generate(PROMPT, GREEDY.replace(logit_bias={first: -100}))[0].outputs[0]
    assert first not in other.token_ids
    penalised = llm.generate(PROMPT, GREEDY.replace(repetition_penalty=2.0, presence_penalty=1.0))
    assert penalised[0].text != llm.generate(PROMPT, GREEDY)[0].text


def test_structured_outputs(llm: LLM) -> None:
    def text(**structure: Any) -> str:
        structured = StructuredOutputsParams(**structure)
        return llm.generate(PROMPT, GREEDY.replace(structured_outputs=structured))[0].text

    assert text(choice=["fox", "hen"]) in ("fox", "hen")
    assert re.fullmatch("[0-9]{4}", text(regex="[0-9]{4}"))
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    assert list(json.loads(text(json=schema))) == ["ok"]
    assert text(grammar='root ::= "yes" | "no"') in ("yes", "no")


def test_streams(llm: LLM) -> None:
    expected = llm.generate(PROMPT, SEEDED)[0].outputs[0]
    events = list(llm.stream(PROMPT, SEEDED))
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert [token.token_id for token in tokens] == expected.token_ids
    assert [token.origin for token in tokens] == expected.origins or len(tokens) == 60
    assert "".join(event.text for event in events if isinstance(event, TextEvent)) == expected.text
    assert isinstance(events[-1], FinishedEvent) and events[-1].output.text == expected.text
    assert "".join(llm.stream(PROMPT, SEEDED).texts()) == expected.text


def test_defaults_are_those_of_the_library(llm: LLM) -> None:
    assert SamplingParams().max_tokens == 16 and SamplingParams().temperature == 1.0
    assert llm.get_default_sampling_params().temperature == 0.0
    assert llm.get_suggested_sampling_params().temperature > 0
    assert forerun.__version__ and "demonstration" in repr(llm)
    assert llm.decode(llm.encode(PROMPT)).strip() == PROMPT
    assert llm.vocab_size > 1000 and llm.max_model_len > 100


def test_scripts_for_vllm(llm: LLM, target: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    [expected] = llm.generate(PROMPT, params)
    [output] = llm.generate(PROMPT, params, use_tqdm=False)
    assert output.text == expected.text
    messages = [{"role": "user", "content": "A fox?"}]
    assert llm.chat(messages, params, use_tqdm=True)[0].text == llm.chat(messages, params)[0].text
    tokenizer = llm.get_tokenizer()
    assert tokenizer.encode(PROMPT) == llm.encode(PROMPT)
    for name, short in [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")]:
        with LLM(target, dtype=name) as long_named, LLM(target, dtype=short) as short_named:
            assert long_named.generate(PROMPT, params)[0].outputs[0].token_ids == (
                short_named.generate(PROMPT, params)[0].outputs[0].token_ids
            )
