"""Errors are exceptions with the library's messages."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
from conftest import PROMPT
from forerun import LLM, FinishedEvent, ForerunError, SamplingParams, StructuredOutputsParams


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "`temperature` is -1"),
        ({"top_p": 0.0}, "`top_p` is 0"),
        ({"top_k": -2}, "`top_k` is -2"),
        ({"min_p": 2.0}, "`min_p` is 2"),
        ({"max_tokens": 0}, "`max_tokens` is 0"),
        ({"n": 0}, "`n` is 0"),
        ({"logprobs": 21}, "`logprobs` is 21"),
        ({"logprobs": -1}, "`logprobs` is -1"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` is 0"),
        ({"frequency_penalty": 3.0}, "`frequency_penalty` is 3"),
        ({"logit_bias": {1: 101.0}}, "`logit_bias` of token 1 is 101"),
        ({"logit_bias": {-1: 1.0}}, "-1 is not a token"),
        ({"stop": [""]}, "`stop` has an empty text"),
        ({"verify": "magic"}, "magic"),
        ({"tree": "oak"}, "oak"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)


def test_options_of_other_types() -> None:
    wrong: Any = {"temperature": "warm"}
    with pytest.raises(TypeError):
        SamplingParams(**wrong)
    unknown: Any = {"best_of": 2}
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(**unknown)
    with pytest.raises(ValueError, match="exactly one"):
        StructuredOutputsParams(regex="a", grammar="b")


def test_prompts_that_cannot_be_answered(llm: LLM) -> None:
    wrong: list[tuple[Any, str]] = [
        ("", "the prompt is empty"),
        ([llm.vocab_size], "vocabulary"),
        ([-1], "not a token"),
        ([1] * llm.max_model_len, "context"),
        ("story " * 100_000, "context"),
        ({"text": "a"}, "neither"),
    ]
    for prompt, message in wrong:
        with pytest.raises(ValueError, match=message):
            llm.generate(prompt)
    with pytest.raises(ValueError, match="2 prompts, but 1 sampling params"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(ValueError, match="one prompt"):
        several: Any = ["a", "b"]
        llm.stream(several)
    with pytest.raises(ValueError, match="draft_tokens"):
        llm.generate(PROMPT, SamplingParams(draft_tokens=1000))
    with pytest.raises(ValueError, match="logit_bias"):
        llm.generate(PROMPT, SamplingParams(logit_bias={10**6: 1.0}))
    with pytest.raises(ValueError, match="regular expression"):
        structure = StructuredOutputsParams(regex="(")
        llm.generate(PROMPT, SamplingParams(structured_outputs=structure))
    # The engine answers as before.
    assert llm.generate(PROMPT)[0].text


def test_engines_that_cannot_be_opened() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"method": "magic"}, '`method`: "magic" is not one of autoregressive'),
        ({"drafter": "magic"}, "`drafter`"),
        ({"draft_tokens": 65}, "`draft_tokens` is 65"),
        ({"dtype": "float3"}, '`dtype`: "float3" is not a weight type'),
        ({"kv_cache_dtype": "x"}, "`kv_cache_dtype`"),
        ({"placement": "target=moon:1"}, "`placement`"),
        ({"draft_model": "x"}, "without `model`"),
        ({"threads": 0}, "`threads` is 0"),
        ({"max_num_seqs": 0}, "`max_num_seqs` is 0"),
        ({"method": "pearl", "tree": "top:4x5"}, "pearl"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            LLM(**options)
    with pytest.raises(ForerunError, match="nowhere"):
        LLM("./nowhere")


def test_a_closed_engine() -> None:
    llm = LLM()
    stream = llm.stream(PROMPT)
    next(stream)
    with llm:
        pass
    assert llm.closed and "closed" in repr(llm)
    last = list(stream)[-1]
    assert isinstance(last, FinishedEvent)
    # The answer may have ended before.
    assert last.output.outputs[0].finish_reason in ("abort", "length", "stop")
    for use in (lambda: llm.generate(PROMPT), lambda: llm.stream(PROMPT)):
        with pytest.raises(ForerunError, match="the engine is closed"):
            use()
    llm.close()


def _generate_in_child(llm: LLM, queue: Any) -> None:
    try:
        llm.generate(PROMPT)
        queue.put("an answer")
    except ForerunError as error:
        queue.put(str(error))


def test_an_engine_after_a_fork(llm: LLM) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system has no fork")
    context: Any = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_generate_in_child, args=(llm, queue))
    child.start()
    assert "another process" in queue.get(timeout=60)
    child.join()
