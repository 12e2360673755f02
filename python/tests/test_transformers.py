"""The drop-in for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forerun
import pytest
from conftest import PROMPT
from forerun import SamplingParams
from forerun.transformers import CausalLM


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    model = forerun.from_transformers(str(target), draft_model=str(target.parent / "drafter"))
    yield model
    model.close()


def test_lists(model: CausalLM) -> None:
    expected = model.llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12))[0]
    ids = model.tokenizer(PROMPT)["input_ids"]
    [row] = model.generate(ids, do_sample=False, max_new_tokens=12)
    assert row == expected.prompt_token_ids + expected.outputs[0].token_ids
    assert model.tokenizer.decode(row, skip_special_tokens=True) == PROMPT + expected.text
    [shorter] = model.generate([ids], do_sample=False, max_length=len(ids) + 5)
    assert shorter == row[: len(ids) + 5]
    assert len(model.generate(ids, do_sample=False)[0]) == len(ids) + 20


def test_arrays_with_padding(model: CausalLM) -> None:
    numpy = pytest.importorskip("numpy")
    texts = [PROMPT, "The fox"]
    inputs = model.tokenizer(texts, return_tensors="np")
    assert inputs["attention_mask"].sum() < inputs["attention_mask"].size
    rows = model.generate(**inputs, do_sample=False, max_new_tokens=8)
    assert isinstance(rows, numpy.ndarray) and rows.dtype == inputs["input_ids"].dtype
    width = inputs["input_ids"].shape[1]
    assert rows.shape[0] == 2 and (rows[:, :width] == inputs["input_ids"]).all()
    for text, row in zip(texts, rows, strict=True):
        expected = model.llm.generate(text, SamplingParams(temperature=0, max_tokens=8))[0]
        assert (
            row[width:].tolist()[: len(expected.outputs[0].token_ids)]
            == expected.outputs[0].token_ids
        )
    assert len(model.tokenizer.batch_decode(rows, skip_special_tokens=True)) == 2


def test_samples(model: CausalLM) -> None:
    ids = model.tokenizer(PROMPT)["input_ids"]
    rows = model.generate(
        ids,
        do_sample=True,
        temperature=0.9,
        top_p=0.9,
        top_k=40,
        max_new_tokens=10,
        seed=1,
        num_return_sequences=3,
    )
    assert len(rows) == 3 and len({tuple(row) for row in rows}) > 1
    again = model.generate(
        ids, do_sample=True, temperature=0.9, top_p=0.9, top_k=40, max_new_tokens=10, seed=1
    )
    assert again[0] == [token for token in rows[0]][: len(again[0])]


def test_ends(model: CausalLM) -> None:
    ids = model.tokenizer(PROMPT)["input_ids"]
    [row] = model.generate(ids, do_sample=False, max_new_tokens=12)
    [ended] = model.generate(
        ids, do_sample=False, max_new_tokens=12, eos_token_id=row[len(ids) + 3]
    )
    assert ended == row[: len(ended)] and ended[-1] == row[len(ids) + 3]
    for options, message in [({"num_beams": 4}, "num_beams=4"), ({"magic": 1}, "magic=1")]:
        with pytest.raises(ValueError, match=message):
            model.generate(ids, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cpu"):
        model.to("cuda")
    assert model.eval() is model and model.to("cpu") is model


def test_streamers(model: CausalLM) -> None:
    class Collects:
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.ended = False

        def put(self, value: Any) -> None:
            self.tokens += value.tolist() if hasattr(value, "tolist") else value

        def end(self) -> None:
            self.ended = True

    streamer = Collects()
    ids = model.tokenizer(PROMPT)["input_ids"]
    [row] = model.generate(ids, do_sample=False, max_new_tokens=12, streamer=streamer)
    assert streamer.tokens == row and streamer.ended


def test_tensors(model: CausalLM) -> None:
    torch = pytest.importorskip("torch")
    inputs = model.tokenizer([PROMPT, "The fox"], return_tensors="pt")
    rows = model.generate(**inputs, do_sample=False, max_new_tokens=8)
    assert isinstance(rows, torch.Tensor) and rows.dtype == torch.int64
    listed = model.generate(
        inputs["input_ids"].tolist(),
        inputs["attention_mask"].tolist(),
        do_sample=False,
        max_new_tokens=8,
    )
    assert rows.tolist() == listed
    texts = []
    for _ in range(2):
        torch.manual_seed(3)
        texts.append(model.generate(**inputs, do_sample=True, max_new_tokens=8).tolist())
    assert texts[0] == texts[1]


def test_encodings(model: CausalLM) -> None:
    inputs = model.tokenizer(PROMPT)
    assert inputs.input_ids == inputs["input_ids"] and inputs.to("cpu") is inputs
    assert inputs.attention_mask == [1] * len(inputs.input_ids)
    with pytest.raises(AttributeError, match="token_type_ids"):
        _ = inputs.token_type_ids
    with pytest.raises(ValueError, match="cpu"):
        inputs.to("cuda")
    assert len(model.generate(**inputs, do_sample=False, max_new_tokens=3)) == 1
    assert model.tokenizer.decode([]) == "" and model.tokenizer.batch_decode([]) == []
    assert model.tokenizer.decode(inputs.input_ids[-1]).strip() in PROMPT
    with pytest.raises(ValueError, match="2 rows: use batch_decode"):
        model.tokenizer.decode([[1], [2]])


def test_conversations(model: CausalLM) -> None:
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    apply: Any = model.tokenizer.apply_chat_template
    text = apply(messages, add_generation_prompt=True, tokenize=False)
    assert text == model.llm.render_chat(messages)
    inputs = apply(messages, add_generation_prompt=True)
    [expected] = model.llm.chat(messages, SamplingParams(temperature=0, max_tokens=8))
    assert inputs.input_ids == expected.prompt_token_ids
    [row] = model.generate(**inputs, do_sample=False, max_new_tokens=8)
    assert row[len(inputs.input_ids) :] == expected.outputs[0].token_ids
    ids = apply([messages, messages], add_generation_prompt=True, return_dict=False)
    assert ids == [inputs.input_ids] * 2
    with pytest.raises(ValueError, match="add_generation_prompt=True"):
        apply(messages)
    with pytest.raises(TypeError, match="`conversation` must be a list of messages"):
        apply("hi", add_generation_prompt=True)


def test_loading_options_that_change_nothing(target: Path) -> None:
    model = forerun.from_transformers(
        str(target),
        torch_dtype="auto",
        device_map="cpu",
        trust_remote_code=False,
        low_cpu_mem_usage=True,
        local_files_only=True,
    )
    ids = model.tokenizer(PROMPT).input_ids
    assert model.generate(ids, generation_config=None, max_new_tokens=2, do_sample=False)
    model.close()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"device_map": "cuda"}, "device_map='cuda'"),
        ({"trust_remote_code": True}, "trust_remote_code=True"),
        ({"dtype": "float3"}, "`dtype`"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            forerun.from_transformers(str(target), **options)
    with pytest.raises(TypeError, match="magic"):
        forerun.from_transformers(str(target), magic=1)


def test_inputs_that_cannot_be_continued(model: CausalLM) -> None:
    ids = model.tokenizer(PROMPT).input_ids
    generate: Any = model.generate
    values: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "give input_ids"),
        (([],), {}, "`input_ids` is empty"),
        (([[]],), {}, r"`input_ids\[0\]` has no tokens"),
        ((ids,), {"attention_mask": [0] * len(ids)}, r"`input_ids\[0\]` has no tokens"),
        ((ids,), {"max_length": len(ids)}, "`max_length` is .*, but the prompt has"),
        ((ids,), {"max_new_tokens": 0}, "`max_new_tokens` is 0"),
        ((ids,), {"generation_config": {"top_k": 1}}, "generation_config"),
        ((ids,), {"num_return_sequences": 0}, "`num_return_sequences` is 0"),
    ]
    for arguments, options, message in values:
        with pytest.raises(ValueError, match=message):
            generate(*arguments, **options)
    types: list[tuple[Any, dict[str, Any], str]] = [
        ("Once", {}, "`input_ids` is a text: call model.tokenizer"),
        (["Once"], {}, r"`input_ids\[0\]` must be a list of tokens"),
        (b"ab", {}, "`input_ids` must be token ids"),
        ([1.5], {}, "must be an integer, not float"),
        (model.tokenizer(PROMPT), {}, r"generate\(\*\*inputs\)"),
        (ids, {"max_new_tokens": 1.5}, "`max_new_tokens` must be an integer"),
    ]
    for wrong, options, message in types:
        with pytest.raises(TypeError, match=message):
            generate(wrong, **options)
    assert len(generate(ids, [True] * len(ids), max_new_tokens=2, do_sample=False)) == 1
