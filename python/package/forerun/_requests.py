"""Prompts with their tokens and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from . import _check
from .params import SamplingParams

if TYPE_CHECKING:
    from ._chat import Tool, ToolChoice
    from ._forerun import Conversation, Stream

#: A prompt: a text, its tokens, or a dictionary with ``prompt`` or ``prompt_token_ids``.
Prompt: TypeAlias = str | Sequence[int] | Mapping[str, object]


@dataclass(frozen=True)
class Request:
    """A prompt with its tokens and options."""

    number: int
    text: str | None
    tokens: list[int]
    params: SamplingParams
    conversation: Conversation | None = None


@dataclass(frozen=True)
class Chat:
    """What conversations ask for besides their messages."""

    tools: Sequence[Tool] | None
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None


def cancel_all(streams: Sequence[Sequence[Stream]]) -> None:
    for own in streams:
        for stream in own:
            stream.cancel()


def only(requests: Sequence[Request]) -> Request:
    if len(requests) != 1 or requests[0].params.n != 1:
        raise ValueError("a stream has one prompt and one answer: call it for each")
    return requests[0]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts. A list of numbers is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    several = _check.items("prompts", prompts, "a text, tokens, a dictionary, or a list of them")
    if several and not any(_is_prompt(one) for one in several):
        return [_check.tokens("prompt", several)]
    return cast(list[Prompt], several)


def _is_prompt(one: object) -> bool:
    """Return whether an item of a list is a prompt of its own, and not a token."""
    return isinstance(one, (str, bytes, bytearray, Mapping)) or hasattr(one, "__len__")


def read_prompt(prompt: Prompt) -> str | list[int]:
    """Return the text of a prompt, or its tokens."""
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            return _check.tokens("prompt_token_ids", prompt["prompt_token_ids"])
        if "prompt" not in prompt:
            raise ValueError('the prompt has neither a text "prompt" nor "prompt_token_ids"')
        return _check.text("prompt", prompt["prompt"])
    return prompt if isinstance(prompt, str) else _check.tokens("prompt", prompt)


def read_params(number: int, given: object) -> list[SamplingParams]:
    """Return the options of each of several prompts."""
    expected = "SamplingParams, or a list of them"
    if isinstance(given, SamplingParams):
        return [given] * number
    params = _check.items("sampling_params", given, expected)
    for index, one in enumerate(params):
        if not isinstance(one, SamplingParams):
            raise _check.wrong_type(f"sampling_params[{index}]", one, "SamplingParams")
    if len(params) != number:
        raise ValueError(
            f"there are {number} prompts, but {len(params)} sampling params: give one for each, or one for all"
        )
    return params
