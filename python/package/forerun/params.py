"""The options of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import _check
from ._forerun import check_params

#: Parameters of vLLM without a counterpart.
_UNSUPPORTED = frozenset(
    """
    allowed_token_ids bad_words best_of detokenize extra_args flat_logprobs guided_decoding
    include_stop_str_in_output length_penalty logits_processors min_tokens output_kind prompt_logprobs
    spaces_between_special_tokens truncate_prompt_tokens use_beam_search
    """.split()
)


@dataclass(frozen=True)
class StructuredOutputsParams:
    """What the text of an answer must look like. Exactly one field is set.

    Attributes:
        json: A JSON schema, as a dictionary or as text.
        regex: A regular expression that matches the whole text.
        choice: The possible texts.
        grammar: A grammar in Lark's syntax or in llama.cpp's GBNF.
        json_object: Whether the text is any JSON object.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        if self.json is not None and not isinstance(self.json, str):
            if not isinstance(self.json, Mapping):
                raise _check.wrong_type("json", self.json, "a JSON schema")
            object.__setattr__(self, "json", json.dumps(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _check.texts("choice", self.choice))
        _check.optional_text("regex", self.regex)
        _check.optional_text("grammar", self.grammar)
        _check.boolean("json_object", self.json_object)
        given = [self.json, self.regex, self.choice, self.grammar, self.json_object or None]
        if sum(one is not None for one in given) != 1:
            raise ValueError("give exactly one of json, regex, choice, grammar and json_object")


@dataclass(frozen=True)
class SamplingParams:
    """The options of an answer. They have the names and defaults of vLLM; the guide lists what differs.

    At temperature 0 and with a seed, the text is token for token that of plain decoding.

    Attributes:
        n: The number of answers to a prompt. The seeds of a prompt's answers follow one another.
        temperature: Divides the logits; 0 is greedy decoding.
        top_p: Keeps the most probable tokens that together reach this probability; 1 keeps all.
        top_k: Keeps this many most probable tokens; 0 and -1 keep all.
        min_p: Keeps tokens at least this many times as probable as the best one; 0 keeps all.
        typical_p: Keeps the tokens whose surprise is nearest to the expected one, up to this probability; 1 keeps all.
        top_n_sigma: Keeps tokens whose logits are within this many standard deviations of the largest; 0 keeps all.
        xtc_probability: How probably XTC excludes all top choices but the least probable one.
        xtc_threshold: The least probability of a top choice.
        dynatemp_range: How far the temperature follows the entropy of the next token; 0 keeps it constant.
        dynatemp_exponent: The exponent of the entropy.
        dry_multiplier: The DRY penalty of tokens that continue a repetition; 0 disables it.
        dry_base: By how much each token of the repetition multiplies the DRY penalty.
        dry_allowed_length: The number of tokens that may repeat.
        dry_penalty_last_n: The number of last tokens in which repetitions count; -1 is all.
        dry_sequence_breakers: Texts across which nothing counts as a repetition.
        max_tokens: The maximum number of tokens; None is the room in the model's context.
        stop: Texts that end the answer, and are not part of it.
        stop_token_ids: Tokens that end the answer.
        seed: Makes sampled text reproducible.
        logprobs: Reports the log-probability of each token, and of this many most probable tokens at its position.
        presence_penalty: Subtracted from the logits of tokens in the answer.
        frequency_penalty: Subtracted from a token's logit for each occurrence in the answer.
        repetition_penalty: Above 1, discourages tokens of prompt and answer.
        logit_bias: Added to the logits of tokens.
        ignore_eos: Whether to continue after the model's end-of-sequence tokens.
        skip_special_tokens: Whether the text leaves special tokens out.
        structured_outputs: What the text must look like.
        verify: How sampled drafts are verified: auto, block, rejection or coupled.
        draft_tokens: The number of tokens of a draft, instead of the engine's.
        tree: The shape of drafts, such as top:4x5, instead of the engine's.
        adapter: The name of one of the engine's adapters; None is the model itself.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = 16
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    seed: int | None = None
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    verify: str = "auto"
    draft_tokens: int | None = None
    tree: str | None = None
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    adapter: str | None = None

    if not TYPE_CHECKING:

        def __new__(cls, *_values: Any, **options: Any) -> SamplingParams:
            _check.supported("SamplingParams", options, _UNSUPPORTED)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        self._check_numbers()
        stop = self.stop or ()
        texts = [stop] if isinstance(stop, str) else _check.texts("stop", stop)
        if not all(texts):
            raise ValueError("`stop` has an empty text")
        self._set("stop", texts)
        breakers = _check.texts("dry_sequence_breakers", self.dry_sequence_breakers)
        self._set("dry_sequence_breakers", breakers)
        ends = () if self.stop_token_ids is None else self.stop_token_ids
        self._set("stop_token_ids", _check.tokens("stop_token_ids", ends))
        self._set("logit_bias", _bias(self.logit_bias))
        for name in ("ignore_eos", "skip_special_tokens"):
            _check.boolean(name, getattr(self, name))
        structure = self.structured_outputs
        if structure is not None and not isinstance(structure, StructuredOutputsParams):
            raise _check.wrong_type("structured_outputs", structure, "StructuredOutputsParams")
        _check.text("verify", self.verify)
        _check.optional_text("tree", self.tree)
        _check.optional_text("adapter", self.adapter)
        check_params(self)

    def _check_numbers(self) -> None:
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "typical_p",
            "top_n_sigma",
            "xtc_probability",
            "xtc_threshold",
            "dynatemp_range",
            "dynatemp_exponent",
            "dry_multiplier",
            "dry_base",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        ):
            self._set(name, _check.number(name, getattr(self, name)))
        self._set("n", _check.integer("n", self.n, 1))
        self._set("top_k", _check.integer("top_k", self.top_k))
        length = _check.integer("dry_allowed_length", self.dry_allowed_length, 0)
        self._set("dry_allowed_length", length)
        last = _check.integer("dry_penalty_last_n", self.dry_penalty_last_n, -1)
        self._set("dry_penalty_last_n", last)
        self._set("max_tokens", _check.optional_integer("max_tokens", self.max_tokens, 1))
        self._set("logprobs", _check.optional_integer("logprobs", self.logprobs, 0))
        self._set("draft_tokens", _check.optional_integer("draft_tokens", self.draft_tokens, 1))
        if self.seed is not None:
            self._set("seed", _check.integer("seed", self.seed) % 2**64)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def replace(self, **changes: Any) -> SamplingParams:
        """Return these options with some of them changed."""
        return replace(self, **changes)

    def _for_answer(self, index: int) -> SamplingParams:
        """Return the options of one of the `n` answers to a prompt."""
        if index == 0 or self.seed is None:
            return self
        return replace(self, seed=self.seed + index)


def _bias(given: Any) -> dict[int, float]:
    """Return the bias of each token. OpenAI's API names tokens by text."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _check.wrong_type("logit_bias", given, "a dictionary of tokens and numbers")
    bias = {}
    for key, value in given.items():
        token = int(key) if isinstance(key, str) and key.isdecimal() else key
        known = _check.token(f"logit_bias[{key!r}]", token)
        bias[known] = _check.number(f"logit_bias[{key!r}]", value)
    return bias
