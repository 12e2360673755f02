"""Embeddings of texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forerun import LLM, SamplingParams

MODELS = Path(__file__).parents[2] / "crates" / "forerun" / "tests" / "goldens" / "embeddings"


def test_embeddings_are_those_of_sentence_transformers(llm: LLM) -> None:
    golden = json.loads((MODELS / "bert-mean" / "golden.json").read_text(encoding="utf-8"))
    # The others are longer than the model's context, and sentence-transformers cuts them.
    texts, embeddings = ([golden[name][i] for i in (1, 4)] for name in ("texts", "embeddings"))
    with LLM(MODELS / "bert-mean", progress=False) as encoder:
        found = encoder.embed(texts)
        assert encoder.embed(texts[0]) == found[:1]
        with pytest.raises(ValueError, match="embeddings"):
            encoder.generate("a", SamplingParams(max_tokens=1))
        with pytest.raises(ValueError, match="context"):
            encoder.embed("a " * 99)
        with pytest.raises(TypeError, match=r"texts\[0\]"):
            encoder.embed([1])  # type: ignore[list-item]
    for one, other in zip(found, embeddings, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    with pytest.raises(ValueError, match="no embeddings"):
        llm.embed("a")
