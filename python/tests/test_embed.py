"""Embeddings of texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forerun import LLM, SamplingParams

MODELS = Path(__file__).parents[2] / "crates" / "forerun" / "tests" / "goldens" / "embeddings"


def test_embeddings_are_those_of_sentence_transformers(llm: LLM) -> None:
    golden = json.loads((MODELS / "bert-mean" / "golden.json").read_text(encoding="utf-8"))
    with LLM(MODELS / "bert-mean", progress=False) as encoder:
        found = encoder.embed(golden["texts"])
        assert encoder.embed(golden["texts"][1]) == found[1:2]
        with pytest.raises(ValueError, match="embeddings"):
            encoder.generate("a", SamplingParams(max_tokens=1))
        with pytest.raises(ValueError, match="context"):
            encoder.embed("a " * 99)
        with pytest.raises(TypeError, match=r"texts\[0\]"):
            encoder.embed([1])  # type: ignore[list-item]
    for one, other in zip(found, golden["embeddings"], strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    with pytest.raises(ValueError, match="no embeddings"):
        llm.embed("a")
