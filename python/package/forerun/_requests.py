"""Prompts with their tokens and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

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
    several = list(prompts)
    if several and all(isinstance(one, int) for one in several):
        return [cast(list[int], several)]
    return cast(list[Prompt], several)


def as_tokens(tokens: Sequence[int]) -> list[int]:
    """Return the tokens of a prompt, as the engine knows numbers."""
    known = [int(token) for token in tokens]
    for token in known:
        if not 0 <= token < 2**32:
            raise ValueError(f"the prompt has the token {token}, which is not a token's number")
    return known
