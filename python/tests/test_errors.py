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
        ({"typical_p": 0.0}, "`typical_p` is 0"),
        ({"dry_penalty_last_n": -2}, "`dry_penalty_last_n` is -2"),
        ({"dry_sequence_breakers": [""]}, "`dry_sequence_breakers` must be"),
        ({"max_tokens": 0}, "`max_tokens` is 0"),
        ({"n": 0}, "`n` is 0"),
        ({"logprobs": 21}, "`logprobs` is 21"),
        ({"logprobs": -1}, "`logprobs` is -1"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` is 0"),
        ({"frequency_penalty": 3.0}, "`frequency_penalty` is 3"),
        ({"logit_bias": {1: 101.0}}, "`logit_bias` of token 1 is 101"),
        ({"logit_bias": {-1: 1.0}}, "is -1, which is not a token"),
        ({"stop_token_ids": [-1]}, "is -1, which is not a token"),
        ({"stop": [""]}, "`stop` has an empty text"),
        ({"verify": "magic"}, "magic"),
        ({"tree": "oak"}, "oak"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "warm"}, "`temperature` must be a number, not str"),
        ({"temperature": True}, "`temperature` must be a number, not bool"),
        ({"max_tokens": 1.5}, r"`max_tokens` must be an integer, not float \(1.5\)"),
        ({"n": "2"}, "`n` must be an integer"),
        ({"top_k": 1.0}, "`top_k` must be an integer"),
        ({"seed": "a"}, "`seed` must be an integer"),
        ({"logprobs": True}, "`logprobs` must be an integer"),
        ({"stop": b"ab"}, "`stop` must be a list of texts, not bytes"),
        ({"stop": [1]}, r"`stop\[0\]` must be a text"),
        ({"stop_token_ids": b"ab"}, "`stop_token_ids` must be a list of tokens, not bytes"),
        ({"stop_token_ids": [1.5]}, r"`stop_token_ids\[0\]` must be an integer"),
        ({"logit_bias": [1]}, "`logit_bias` must be a dictionary"),
        ({"logit_bias": {1.5: 1}}, "must be an integer, not float"),
        ({"ignore_eos": 1}, "`ignore_eos` must be True or False"),
        ({"structured_outputs": {"json": "{}"}}, "`structured_outputs` must be Structured"),
        ({"verify": 1}, "`verify` must be a text"),
        ({"min_tokens": 2}, "SamplingParams does not support `min_tokens` of vLLM"),
        ({"bad_words": ["a"]}, "does not support `bad_words` of vLLM"),
        ({"prompt_logprobs": 1}, "does not support `prompt_logprobs` of vLLM"),
        ({"magic": 1}, "magic"),
    ],
)
def test_options_of_other_types(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        SamplingParams(**options)


def test_structures_of_other_types() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        StructuredOutputsParams(regex="a", grammar="b")
    wrong: list[dict[str, Any]] = [{"json": 1}, {"choice": "ab"}, {"regex": 1}, {"json_object": 1}]
    for options in wrong:
        [name] = options
        with pytest.raises(TypeError, match=f"`{name}` must be"):
            StructuredOutputsParams(**options)


def test_numbers_of_other_libraries() -> None:
    numpy = pytest.importorskip("numpy")
    params = SamplingParams(
        temperature=numpy.float32(0.5), max_tokens=numpy.int64(3), stop_token_ids=numpy.array([4])
    )
    assert params == SamplingParams(temperature=0.5, max_tokens=3, stop_token_ids=[4])


def test_prompts_of_other_types(llm: LLM) -> None:
    prompts: list[tuple[Any, str]] = [
        (b"ab", "`prompts` must be a text, tokens"),
        (3, "`prompts` must be a text, tokens"),
        ([b"ab"], "`prompt` must be a list of tokens, not bytes"),
        ([1.5, 2.0], r"`prompt\[0\]` must be an integer, not float"),
        ([True], r"`prompt\[0\]` must be an integer, not bool"),
        ([[1, 2.5]], r"`prompt\[1\]` must be an integer, not float"),
        (["a", 1], "`prompt` must be a list of tokens, not int"),
        ({"prompt_token_ids": "ab"}, "`prompt_token_ids` must be a list of tokens, not str"),
        ({"prompt": 1}, "`prompt` must be a text"),
    ]
    for prompt, message in prompts:
        with pytest.raises(TypeError, match=message):
            llm.generate(prompt)
    params: list[tuple[Any, str]] = [
        (
            {"max_tokens": 3},
            "`sampling_params` must be SamplingParams, or a list of them, not dict",
        ),
        ([{"max_tokens": 3}], r"`sampling_params\[0\]` must be SamplingParams, not dict"),
        (3, "`sampling_params` must be SamplingParams"),
    ]
    for wrong, message in params:
        with pytest.raises(TypeError, match=message):
            llm.generate("a", wrong)
    any_llm: Any = llm
    with pytest.raises(TypeError, match="`token_ids` must be a list of tokens"):
        any_llm.decode(b"ab")
    with pytest.raises(TypeError, match="`text` must be a text"):
        any_llm.encode(b"ab")
    with pytest.raises(TypeError, match="`top` must be an integer"):
        any_llm.score("a", "b", top=1.5)
    with pytest.raises(ValueError, match="`form` is 'png', but it must be svg, text or perfetto"):
        any_llm.generate(PROMPT)[0].outputs[0].timeline("png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 1.5}, "`threads` must be an integer"),
        ({"model": 3}, "`model` must be a text or a path"),
        ({"dtype": 16}, "`dtype` must be a text"),
        ({"draft_tokens": 1.5}, "`draft_tokens` must be an integer"),
        ({"also_draft": "prompt-lookup"}, "`also_draft` must be a list of texts"),
        ({"pin": 1}, "`pin` must be True or False"),
        ({"progress": 1}, "`progress` must be True or False"),
        ({"tensor_parallel_size": 2}, "LLM does not support `tensor_parallel_size` of vLLM"),
        ({"gpu_memory_utilization": 0.9}, "does not support `gpu_memory_utilization` of vLLM"),
        ({"magic": 1}, "magic"),
    ],
)
def test_engine_options_of_other_types(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        LLM(**options)


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
        ({"gpu_layers": 0}, "`gpu_layers` is 0"),
        ({"cpu_moe": 0}, "`cpu_moe` is 0"),
        ({"threads": -1}, "`threads` is -1"),
        ({"kv_cache_memory_bytes": -1}, "`kv_cache_memory_bytes` is -1"),
        ({"cache_dir_size": 1}, "`cache_dir_size` has no effect without `cache_dir`"),
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
