"""Answers, their tokens and their measurements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from . import _html
from ._chat import ChatMessage

if TYPE_CHECKING:
    from ._fields import AnswerFields, LogprobFields, TokenFields
    from ._forerun import Trace

#: Where a token comes from. ``draft``: a drafter proposed it, and the target accepted it. The others are the
#: target's own: in place of a rejected draft, after a whole accepted draft, or without a draft.
Origin: TypeAlias = Literal["draft", "correction", "bonus", "plain"]

#: Why an answer ended: at its end or a stop string, at a limit of tokens, or because it was cancelled.
FinishReason: TypeAlias = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Logprob:
    """The log-probability of a token under the target, before all sampling options.

    Attributes:
        logprob: The natural logarithm of the probability.
        rank: The place among the reported most probable tokens, from 1 on; None if it is not among them.
        decoded_token: The text of the token.
    """

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True)
class Statistics:
    """Counters of drafting and verification.

    Attributes:
        drafts: The rounds that verified a draft.
        lookups: The rounds among them whose draft was looked up in earlier text.
        draft_tokens: The drafted tokens.
        accepted_tokens: The drafted tokens that were accepted.
        tested_per_position: How often the draft token at each position was tested.
        accepted_per_position: How often it was accepted.
        acceptance_rate: The share of tested draft tokens that were accepted.
        mean_accepted_tokens: Tokens per forward pass of the target, with its own.
        target_forwards: The forward passes of the target that gave tokens.
        draft_seconds: The time of drafting.
        score_seconds: The time of verification.
        failures: Drafters and replicas that failed. Decoding continued without them.
    """

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


@dataclass(frozen=True)
class Timings:
    """The times of an answer.

    Attributes:
        first_token_seconds: From the start to the first token.
        total_seconds: From the start to the last token.
        tokens_per_second: Over the whole time, with the prompt's.
    """

    first_token_seconds: float
    total_seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class CompletionOutput:
    """One answer to a prompt. Notebooks show its text with accepted drafts in colour, and its timeline.

    Attributes:
        index: The number of the answer among those to the prompt.
        text: The text.
        token_ids: The tokens, with those that ended the answer.
        cumulative_logprob: The sum of the tokens' log-probabilities, if they were requested.
        logprobs: For each token, the log-probabilities by token, if they were requested.
        finish_reason: Why the answer ended.
        stop_reason: The stop string or stop token that ended the answer; None for the end of the text.
        origins: Where each token comes from.
        segments: The text in pieces with their origins; rejected drafts stand between them as ``rejected``.
        seed: The seed of the answer's random draws.
        verification: How drafts were verified.
        statistics: Counters of drafting and verification.
        timings: Times.
        summary: A line about speed and acceptance.
        message: The parts of the answer, in a conversation.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    origins: list[Origin]
    segments: list[tuple[str, str]] = field(repr=False)
    seed: int
    verification: str
    statistics: Statistics = field(repr=False)
    timings: Timings = field(repr=False)
    summary: str
    _trace: Trace | None = field(repr=False, compare=False)
    message: ChatMessage | None = None

    def timeline(self, form: Literal["svg", "text", "perfetto"] = "svg") -> str:
        """Return what each device did while the answer was generated.

        ``svg`` is a picture, ``text`` has at most a hundred columns, and ``perfetto`` is JSON for Perfetto. A copy
        that was pickled has no timeline, and returns an empty text.
        """
        if form not in ("svg", "text", "perfetto"):
            raise ValueError(f"`form` is {form!r}, but it must be svg, text or perfetto")
        if self._trace is None:
            return ""
        if form == "svg":
            return self._trace.svg()
        return self._trace.ascii() if form == "text" else self._trace.perfetto()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trace": None}

    def _repr_html_(self) -> str:
        return _html.answer(self)


@dataclass(frozen=True)
class RequestOutput:
    """The answers to a prompt.

    Attributes:
        request_id: The number of the request.
        prompt: The prompt's text; None if it was given as tokens.
        prompt_token_ids: The prompt's tokens.
        outputs: The answers.
        num_cached_tokens: The tokens of the prompt that were in the cache.
        finished: True: all answers have ended.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] = field(repr=False)
    outputs: list[CompletionOutput]
    num_cached_tokens: int = field(repr=False, default=0)
    finished: bool = True

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.outputs[0].text

    def _repr_html_(self) -> str:
        return _html.request(self)


@dataclass(frozen=True)
class TokenEvent:
    """A verified token of an answer in progress. The text that it makes final follows.

    Attributes:
        token_id: The token.
        piece: The text of the token in the middle of a text.
        origin: Where it comes from.
        rejected: The drafted tokens for its place that were rejected.
        round: The number of its verification.
        logprobs: The log-probabilities by token, if they were requested.
    """

    token_id: int
    piece: str
    origin: Origin
    rejected: list[int]
    round: int
    logprobs: dict[int, Logprob] | None


@dataclass(frozen=True)
class TextEvent:
    """Whole characters of an answer in progress that are final."""

    text: str


@dataclass(frozen=True)
class FinishedEvent:
    """The whole answer. This is the last event."""

    output: RequestOutput


#: An event of an answer in progress.
Event: TypeAlias = TokenEvent | TextEvent | FinishedEvent


def by_token(logprob: LogprobFields) -> dict[int, Logprob]:
    """Return log-probabilities by token, as vLLM has them: the token, then the most probable ones."""
    ranks = {token: rank for rank, (token, _, _) in enumerate(logprob["top"], 1)}
    entries = [logprob["chosen"], *logprob["top"]]
    return {token: Logprob(value, ranks.get(token), text) for token, value, text in entries}


def token_event(token: TokenFields) -> TokenEvent:
    """Return the event of a token."""
    logprob = token["logprob"]
    return TokenEvent(
        token_id=token["token_id"],
        piece=token["piece"],
        origin=token["origin"],
        rejected=token["rejected"],
        round=token["round"],
        logprobs=None if logprob is None else by_token(logprob),
    )


_REASONS: dict[str, FinishReason] = {
    "eos": "stop",
    "stop": "stop",
    "max_tokens": "length",
    "context": "length",
    "aborted": "abort",
}


def completion_output(
    index: int,
    answer: AnswerFields,
    stop_reason: int | str | None,
    message: ChatMessage | None,
) -> CompletionOutput:
    """Return an answer in its final form."""
    logprobs = answer["logprobs"]
    total = answer["total_seconds"]
    return CompletionOutput(
        index=index,
        text=answer["text"],
        token_ids=answer["token_ids"],
        cumulative_logprob=None if logprobs is None else sum(one["chosen"][1] for one in logprobs),
        logprobs=None if logprobs is None else [by_token(one) for one in logprobs],
        finish_reason=_REASONS[answer["finish"]],
        stop_reason=stop_reason,
        origins=answer["origins"],
        segments=answer["segments"],
        seed=answer["seed"],
        verification=answer["verification"],
        statistics=Statistics(**answer["statistics"]),
        timings=Timings(
            first_token_seconds=answer["first_token_seconds"],
            total_seconds=total,
            tokens_per_second=len(answer["token_ids"]) / total if total > 0 else 0.0,
        ),
        summary=answer["summary"],
        _trace=answer["trace"],
        message=message,
    )
