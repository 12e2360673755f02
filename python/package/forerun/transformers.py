"""A drop-in for models of Hugging Face transformers: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

from ._requests import as_tokens
from .llm import LLM
from .outputs import FinishedEvent, TokenEvent
from .params import SamplingParams

#: Token ids: a torch tensor, a numpy array, or lists.
Ids: TypeAlias = Any

#: The new tokens of an answer without a limit, as in transformers.
_DEFAULT_NEW_TOKENS = 20

#: Options of generation that have the same meaning in transformers.
_SAME = ("top_p", "min_p", "repetition_penalty")

#: Options of transformers that change nothing here, with the values that they may have.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "use_cache": (True, None),
    "num_beams": (1, None),
    "return_dict_in_generate": (False, None),
    "output_scores": (False, None),
    "early_stopping": (False, None),
    "synced_gpus": (False, None),
}


def from_transformers(model: str | PathLike[str], **options: Any) -> CausalLM:
    """Load a model that is used as one of transformers: ``AutoModelForCausalLM.from_pretrained(model)``.

    >>> model = from_transformers("path/or/hub-id", draft_model="...")  # doctest: +SKIP
    >>> inputs = model.tokenizer("Once upon a time", return_tensors="pt")  # doctest: +SKIP
    >>> ids = model.generate(**inputs, max_new_tokens=40)  # doctest: +SKIP
    >>> print(model.tokenizer.decode(ids[0], skip_special_tokens=True))  # doctest: +SKIP

    Args:
        model: A directory, a GGUF file or a hub id.
        options: The options of :class:`forerun.LLM`, such as ``draft_model``.
    """
    return CausalLM(LLM(model, **options))


class CausalLM:
    """A model with the method ``generate`` of transformers.

    Attributes:
        llm: The engine.
        tokenizer: The checkpoint's tokenizer, with the methods that transformers' users know.
        device: Where tensors of token ids are: ``cpu``.
    """

    device = "cpu"

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.tokenizer = Tokenizer(llm)

    def generate(
        self,
        input_ids: Ids = None,
        attention_mask: Ids = None,
        *,
        inputs: Ids = None,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        num_return_sequences: int = 1,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        stop_strings: str | Sequence[str] | None = None,
        seed: int | None = None,
        streamer: Any = None,
        tokenizer: Any = None,
        **options: Any,
    ) -> Ids:
        """Continue token ids, and return prompts and answers: a row each, padded on the right.

        The result has the form of the input: a torch tensor, a numpy array, or lists. Greedy decoding gives the tokens
        of transformers, up to the rounding of logits. Without options, sampling is what the checkpoint's
        ``generation_config.json`` says. Samples follow ``torch.manual_seed`` if the input is a tensor, or ``seed``.

        Args:
            input_ids: The prompts: a row each, or one row.
            attention_mask: 0 for padding, which is left out.
            inputs: Another name of ``input_ids``.
            max_new_tokens: The most tokens of an answer.
            max_length: The most tokens of prompt and answer.
            do_sample: Whether to sample; otherwise decoding is greedy.
            temperature: Divides the logits.
            top_k: Keeps this many most probable tokens.
            num_return_sequences: The answers to each prompt.
            eos_token_id: The tokens that end an answer, in addition to the model's.
            pad_token_id: What fills shorter rows; by default the tokenizer's, or the end of the text.
            stop_strings: Texts that end an answer, and are part of it.
            seed: Makes samples reproducible.
            streamer: An object with ``put`` and ``end``, which receives the tokens of one prompt.
            tokenizer: Ignored: the checkpoint's is used.
            options: ``top_p``, ``min_p`` and ``repetition_penalty``.

        Raises:
            ValueError: If an option of transformers is not supported.
        """
        ids = inputs if input_ids is None else input_ids
        if ids is None:
            raise ValueError("give input_ids")
        prompts = _rows(ids, attention_mask)
        params = self._params(do_sample, temperature, top_k, options).replace(
            stop_token_ids=[eos_token_id] if isinstance(eos_token_id, int) else eos_token_id,
            stop=stop_strings,
            n=num_return_sequences,
        )
        if params.temperature > 0:
            params = params.replace(seed=_drawn_seed(ids) if seed is None else seed)
        limits = [_limit(len(prompt), max_new_tokens, max_length) for prompt in prompts]
        each = [params.replace(max_tokens=limit) for limit in limits]
        if streamer is not None:
            answers = [self._stream(prompts, each, streamer)]
        else:
            outputs = self.llm.generate(prompts, each)
            answers = [[one.token_ids for one in output.outputs] for output in outputs]
        pad = self.tokenizer.pad_token_id if pad_token_id is None else pad_token_id
        # A row begins as it was given, with its padding.
        given = _raw_rows(ids)
        rows = [row + answer for row, own in zip(given, answers, strict=True) for answer in own]
        longest = max(len(row) for row in rows)
        return _like(ids, [row + [pad] * (longest - len(row)) for row in rows])

    def _params(
        self,
        do_sample: bool | None,
        temperature: float | None,
        top_k: int | None,
        options: dict[str, Any],
    ) -> SamplingParams:
        suggested = self.llm.get_suggested_sampling_params()
        if do_sample is None:
            do_sample = suggested.temperature > 0
        params = suggested if do_sample else SamplingParams(temperature=0.0)
        if do_sample and params.temperature == 0:
            # The defaults of transformers.
            params = SamplingParams(temperature=1.0, top_k=50)
        if do_sample and temperature is not None:
            params = params.replace(temperature=temperature)
        if do_sample and top_k is not None:
            params = params.replace(top_k=top_k)
        for name, value in options.items():
            if name in _SAME:
                if value is not None and (do_sample or name == "repetition_penalty"):
                    params = params.replace(**{name: value})
            elif value not in _WITHOUT_EFFECT.get(name, ()):
                raise ValueError(f"generate does not support {name}={value!r}")
        return params

    def _stream(
        self, prompts: list[list[int]], params: list[SamplingParams], streamer: Any
    ) -> list[list[int]]:
        if len(prompts) != 1:
            raise ValueError("a streamer needs one prompt")
        streamer.put(_like_streamer(prompts[0]))
        tokens: list[int] = []
        with self.llm.stream(prompts[0], params[0]) as stream:
            for event in stream:
                if isinstance(event, TokenEvent):
                    streamer.put(_like_streamer([event.token_id]))
                elif isinstance(event, FinishedEvent):
                    tokens = event.output.outputs[0].token_ids
        streamer.end()
        return [tokens]

    def eval(self) -> CausalLM:
        """Return this model, which is always used for inference."""
        return self

    def to(self, device: Any = None, *_args: Any, **_options: Any) -> CausalLM:
        """Return this model, whose device is the cpu."""
        if device is not None and str(device) != "cpu":
            raise ValueError(f"the device is {device}, but forerun computes on the cpu")
        return self

    def close(self) -> None:
        """Free the model."""
        self.llm.close()


class Tokenizer:
    """A checkpoint's tokenizer, with the methods that users of transformers know."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return next(iter(self._llm.eos_token_ids), None)

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        return self._llm.bos_token_id

    @property
    def pad_token_id(self) -> int:
        """The token that fills rows: the end of the text."""
        return self.eos_token_id or 0

    def __len__(self) -> int:
        return self._llm.vocab_size

    def __call__(
        self, text: str | Sequence[str], *, return_tensors: str | None = None, **_options: Any
    ) -> dict[str, Ids]:
        """Return ``input_ids`` and ``attention_mask``. Rows of several texts are padded on the left for tensors."""
        texts = [text] if isinstance(text, str) else list(text)
        rows = [self.encode(one) for one in texts]
        if return_tensors is None:
            masks = [[1] * len(row) for row in rows]
            is_one = isinstance(text, str)
            return {
                "input_ids": rows[0] if is_one else rows,
                "attention_mask": masks[0] if is_one else masks,
            }
        width = max(len(row) for row in rows)
        masks = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        padded = [[self.pad_token_id] * (width - len(row)) + row for row in rows]
        return {
            "input_ids": _array(padded, return_tensors),
            "attention_mask": _array(masks, return_tensors),
        }

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self._llm.encode(text)

    def decode(self, token_ids: Ids, skip_special_tokens: bool = False, **_options: Any) -> str:
        """Return the text of tokens."""
        (row,) = _raw_rows(token_ids)
        return self._llm.decode(row, skip_special_tokens)

    def batch_decode(
        self, sequences: Ids, skip_special_tokens: bool = False, **_options: Any
    ) -> list[str]:
        """Return the texts of several rows of tokens."""
        return [self._llm.decode(row, skip_special_tokens) for row in _raw_rows(sequences)]


def _raw_rows(ids: Ids) -> list[list[int]]:
    """Return token ids as lists, one for each row."""
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if listed and not isinstance(listed[0], (list, tuple)):
        listed = [listed]
    return [as_tokens(row) for row in listed]


def _rows(ids: Ids, attention_mask: Ids) -> list[list[int]]:
    """Return the prompts without padding."""
    rows = _raw_rows(ids)
    if attention_mask is None:
        return rows
    masks = _raw_rows(attention_mask)
    if [len(row) for row in rows] != [len(mask) for mask in masks]:
        raise ValueError("attention_mask has another shape than input_ids")
    return [
        [token for token, is_kept in zip(row, mask, strict=True) if is_kept]
        for row, mask in zip(rows, masks, strict=True)
    ]


def _limit(prompt: int, max_new_tokens: int | None, max_length: int | None) -> int:
    if max_new_tokens is not None:
        return max_new_tokens
    if max_length is not None:
        return max_length - prompt
    return _DEFAULT_NEW_TOKENS


def _like(ids: Ids, rows: list[list[int]]) -> Ids:
    """Return rows in the form of `ids`."""
    if hasattr(ids, "new_tensor"):
        return ids.new_tensor(rows)
    if hasattr(ids, "dtype"):
        return _array(rows, "np").astype(ids.dtype)
    return rows


def _array(rows: list[list[int]], kind: str) -> Ids:
    if kind == "pt":
        import torch

        return torch.tensor(rows)
    if kind == "np":
        import numpy

        return numpy.array(rows)
    raise ValueError(f"return_tensors is {kind!r}, but it must be pt or np")


def _like_streamer(tokens: list[int]) -> Ids:
    """Return tokens in the form that transformers' streamers read."""
    try:
        return _array([tokens], "pt")[0]
    except ImportError:
        return tokens


def _drawn_seed(ids: Ids) -> int | None:
    """Draw a seed that follows ``torch.manual_seed``."""
    if not hasattr(ids, "new_tensor"):
        return None
    import torch

    return int(torch.randint(0, 2**53, ()))
