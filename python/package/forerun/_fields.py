"""The dictionaries that the native module takes and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, final

if TYPE_CHECKING:
    from ._forerun import Trace


class LogprobFields(TypedDict):
    """The log-probabilities at a place: the token, and the most probable ones."""

    chosen: tuple[int, float, str]
    top: list[tuple[int, float, str]]


@final
class TokenFields(TypedDict):
    """A verified token."""

    token_id: int
    piece: str
    origin: Literal["draft", "correction", "bonus", "plain"]
    rejected: list[int]
    round: int
    logprob: LogprobFields | None


class StatisticsFields(TypedDict):
    """Counters of an answer."""

    drafts: int
    lookups: int
    draft_tokens: int
    accepted_tokens: int
    tested_per_position: list[int]
    accepted_per_position: list[int]
    acceptance_rate: float
    mean_accepted_tokens: float
    target_forwards: int
    draft_seconds: float
    score_seconds: float
    failures: list[str]


@final
class AnswerFields(TypedDict):
    """A whole answer."""

    text: str
    token_ids: list[int]
    logprobs: list[LogprobFields] | None
    origins: list[Literal["draft", "correction", "bonus", "plain"]]
    segments: list[tuple[str, str]]
    prompt_tokens: int
    cached_prompt_tokens: int
    finish: Literal["eos", "stop", "max_tokens", "context", "aborted"]
    seed: int
    verification: Literal["rejection", "block", "coupled"]
    first_token_seconds: float
    total_seconds: float
    statistics: StatisticsFields
    summary: str
    trace: Trace


class Description(TypedDict):
    """What an engine was opened with."""

    model: str
    draft_model: str | None
    method: str
    drafter: str
    placement: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: list[int]
    bos_token_id: int | None


class Suggested(TypedDict):
    """The sampling options that a checkpoint suggests."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float


class ConversationFields(TypedDict):
    """A conversation, with what has no fixed form as JSON."""

    messages: str
    tools: str
    requires_call: bool
    parallel_calls: bool
    variables: str
    chat_template: str | None
