"""A drop-in for models of Hugging Face transformers: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, TypeAlias

from . import _check
from ._chat import Message, Tool
from ._requests import Chat
from .llm import LLM
from .outputs import FinishedEvent, TokenEvent
from .params import SamplingParams

#: Token ids: a torch tensor, a numpy array, or lists.
Ids: TypeAlias = Any

#: The new tokens of an answer without a limit, as in transformers.
_DEFAULT_NEW_TOKENS = 20

#: Options of generation that have the same meaning in transformers.
_SAME = ("top_p", "min_p", "repetition_penalty")

#: Options of generation that change nothing here, with the values that they may have.
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "assistant_model": (None,),
    "bos_token_id": (None,),
    "diversity_penalty": (0.0, None),
    "early_stopping": (False, None),
    "generation_config": (None,),
    "length_penalty": (1.0, None),
    "logits_processor": (None,),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
    "no_repeat_ngram_size": (0, None),
    "num_beam_groups": (1, None),
    "num_beams": (1, None),
    "output_attentions": (False, None),
    "output_hidden_states": (False, None),
    "output_logits": (False, None),
    "output_scores": (False, None),
    "prefix_allowed_tokens_fn": (None,),
    "return_dict_in_generate": (False, None),
    "stopping_criteria": (None,),
    "synced_gpus": (False, None),
    "typical_p": (1.0, None),
    "use_cache": (True, None),
}

#: Options of loading that change nothing here, with the values that they may have.
_LOADING_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "attn_implementation": ("sdpa", "eager", None),
    "device_map": ("cpu", "auto", None, {"": "cpu"}),
    "low_cpu_mem_usage": (True, False, None),
    "trust_remote_code": (False, None),
    "use_safetensors": (True, None),
}


def _changes_nothing(known: Mapping[str, tuple[object, ...]], name: str, value: object) -> bool:
    simple = (bool, int, float, str, dict, type(None))
    return isinstance(value, simple) and value in known.get(name, ())


def from_transformers(model: str | PathLike[str], **options: Any) -> CausalLM:
    """Load a model that is used as one of transformers: ``AutoModelForCausalLM.from_pretrained(model)``.

    >>> model = from_transformers("path/or/hub-id", draft_model="...")  # doctest: +SKIP
    >>> inputs = model.tokenizer("Once upon a time", return_tensors="pt")  # doctest: +SKIP
    >>> ids = model.generate(**inputs, max_new_tokens=40)  # doctest: +SKIP
    >>> print(model.tokenizer.decode(ids[0], skip_special_tokens=True))  # doctest: +SKIP

    Args:
        model: A directory, a GGUF file or a hub id.
        options: The options of :class:`forerun.LLM`, such as ``draft_model``. Those of transformers that change nothing
            here are accepted: ``device_map="cpu"``, ``trust_remote_code=False`` and others. ``torch_dtype`` is
            another name of ``dtype``, and ``local_files_only`` one of ``offline``.

    Raises:
        TypeError: If an option is not supported.
        ValueError: If an option of transformers has a value that is not supported.
    """
    own: dict[str, Any] = {}
    for name, value in options.items():
        if name in ("dtype", "torch_dtype"):
            # Types of torch, or their names.
            own["dtype"] = "auto" if value is None else str(value).removeprefix("torch.")
        elif name == "local_files_only":
            own["offline"] = value
        elif name not in _LOADING_WITHOUT_EFFECT:
            own[name] = value
        elif not _changes_nothing(_LOADING_WITHOUT_EFFECT, name, value):
            raise ValueError(f"from_transformers does not support {name}={value!r}")
    return CausalLM(LLM(model, **own))


class BatchEncoding(dict[str, Any]):
    """Token ids and masks: a dictionary whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, device: Any = None, *_args: Any, **_options: Any) -> BatchEncoding:
        """Return this object, whose device is the cpu."""
        _check_device(device)
        return self


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
            TypeError: If the input is not token ids, or an option has the wrong type.
            ValueError: If there is no input, or an option of transformers is not supported.
        """
        ids = inputs if input_ids is None else input_ids
        if ids is None:
            raise ValueError("give input_ids")
        prompts = _rows(ids, attention_mask)
        _check.integer("num_return_sequences", num_return_sequences, 1)
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
        given = _raw_rows("input_ids", ids)
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
            elif not _changes_nothing(_WITHOUT_EFFECT, name, value):
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
        _check_device(device)
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
    ) -> BatchEncoding:
        """Return ``input_ids`` and ``attention_mask``. Rows of several texts are padded on the left for tensors."""
        is_one = isinstance(text, str)
        texts = [text] if isinstance(text, str) else _check.texts("text", text)
        return self._encoding([self.encode(one) for one in texts], is_one, return_tensors)

    def _encoding(
        self, rows: list[list[int]], is_one: bool, return_tensors: str | None
    ) -> BatchEncoding:
        if return_tensors is None:
            masks = [[1] * len(row) for row in rows]
            return BatchEncoding(
                input_ids=rows[0] if is_one else rows, attention_mask=masks[0] if is_one else masks
            )
        width = max((len(row) for row in rows), default=0)
        masks = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        padded = [[self.pad_token_id] * (width - len(row)) + row for row in rows]
        return BatchEncoding(
            input_ids=_array(padded, return_tensors), attention_mask=_array(masks, return_tensors)
        )

    def apply_chat_template(
        self,
        conversation: Sequence[Message] | Sequence[Sequence[Message]],
        tools: Sequence[Tool] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_tensors: str | None = None,
        return_dict: bool = True,
        **variables: Any,
    ) -> Any:
        """Return a conversation, or several, as the model's template writes it up to the beginning of an answer.

        As in transformers 5, the result is a :class:`BatchEncoding`; it is only the token ids with
        ``return_dict=False``, and a text with ``tokenize=False``.

        Args:
            conversation: Dictionaries with ``role`` and ``content``, or a list of such conversations.
            tools: The tools that the model may call.
            chat_template: A Jinja file, or the name of one of the checkpoint's templates.
            add_generation_prompt: Must be True: conversations without the beginning of an answer are not supported.
            tokenize: Whether to return tokens, not a text.
            return_tensors: ``pt``, ``np``, or None for lists.
            return_dict: Whether to return the attention mask as well.
            variables: Further variables of the template.

        Raises:
            ValueError: If ``add_generation_prompt`` is not True, or the template refuses the messages.
        """
        if add_generation_prompt is not True:
            raise ValueError(
                "apply_chat_template needs add_generation_prompt=True: forerun renders conversations only up to the beginning of an answer"
            )
        given = _check.items("conversation", conversation, "a list of messages")
        is_one = not given or isinstance(given[0], Mapping)
        conversations = [given] if is_one else given
        chat = Chat(tools, "auto", True, chat_template, variables)
        rows = [self._llm._encode_chat(one, SamplingParams(), chat).tokens for one in conversations]
        if not tokenize:
            texts = [self._llm.decode(row, skip_special_tokens=False) for row in rows]
            return texts[0] if is_one else texts
        encoding = self._encoding(rows, is_one, return_tensors)
        return encoding if return_dict else encoding["input_ids"]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self._llm.encode(text)

    def decode(self, token_ids: Ids, skip_special_tokens: bool = False, **_options: Any) -> str:
        """Return the text of tokens, or of one token."""
        rows = _raw_rows("token_ids", [token_ids] if isinstance(token_ids, int) else token_ids)
        if len(rows) > 1:
            raise ValueError(f"`token_ids` has {len(rows)} rows: use batch_decode")
        return self._llm.decode(rows[0], skip_special_tokens) if rows else ""

    def batch_decode(
        self, sequences: Ids, skip_special_tokens: bool = False, **_options: Any
    ) -> list[str]:
        """Return the texts of several rows of tokens."""
        return [
            self._llm.decode(row, skip_special_tokens) for row in _raw_rows("sequences", sequences)
        ]


def _check_device(device: object) -> None:
    if device is not None and str(device) != "cpu":
        raise ValueError(f"the device is {device}, but forerun computes on the cpu")


def _raw_rows(name: str, ids: Ids) -> list[list[int]]:
    """Return token ids as lists, one for each row."""
    listed = _check.items(name, ids, "token ids: a tensor, an array, or lists of integers")
    if listed and not hasattr(listed[0], "__len__"):
        listed = [listed]
    return [_check.tokens(f"{name}[{index}]", row) for index, row in enumerate(listed)]


def _as_numbers(mask: Ids) -> Any:
    """Return a mask as numbers, also if it has truth values."""
    listed = _check.items("attention_mask", mask, "a tensor, an array, or lists of 0 and 1")
    return [
        int(one) if isinstance(one, bool) else _as_numbers(one) if hasattr(one, "__len__") else one
        for one in listed
    ]


def _rows(ids: Ids, attention_mask: Ids) -> list[list[int]]:
    """Return the prompts without padding."""
    if isinstance(ids, str):
        raise TypeError("`input_ids` is a text: call model.tokenizer(text) for its token ids")
    if isinstance(ids, Mapping):
        raise TypeError("`input_ids` is a dictionary: write model.generate(**inputs)")
    rows = _raw_rows("input_ids", ids)
    if attention_mask is not None:
        masks = _raw_rows("attention_mask", _as_numbers(attention_mask))
        if [len(row) for row in rows] != [len(mask) for mask in masks]:
            raise ValueError("attention_mask has another shape than input_ids")
        rows = [
            [token for token, is_kept in zip(row, mask, strict=True) if is_kept]
            for row, mask in zip(rows, masks, strict=True)
        ]
    if not rows:
        raise ValueError("`input_ids` is empty")
    for index, row in enumerate(rows):
        if not row:
            raise ValueError(f"`input_ids[{index}]` has no tokens")
    return rows


def _limit(prompt: int, max_new_tokens: int | None, max_length: int | None) -> int:
    """Return the most new tokens after a prompt of this many tokens."""
    if max_new_tokens is not None:
        return _check.integer("max_new_tokens", max_new_tokens, 1)
    if max_length is None:
        return _DEFAULT_NEW_TOKENS
    if _check.integer("max_length", max_length) <= prompt:
        raise ValueError(
            f"`max_length` is {max_length}, but the prompt has {prompt} tokens already: raise it, or set max_new_tokens"
        )
    return max_length - prompt


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
