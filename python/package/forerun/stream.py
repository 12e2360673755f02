"""Answers in progress."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from .outputs import Event, TextEvent

if TYPE_CHECKING:
    from ._forerun import Stream
    from ._requests import Request
    from .llm import LLM


class AnswerStream:
    """An answer in progress: an iterator of its events (see :meth:`LLM.stream`).

    The answer is computed ahead of the iterator. Deleting or closing it cancels the answer.
    """

    def __init__(self, llm: LLM, request: Request, stream: Stream) -> None:
        self._llm = llm
        self._request = request
        self._stream = stream

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> Event:
        return self._llm._event(self._request, self._stream.next())

    def texts(self) -> Iterator[str]:
        """Iterate over the pieces of the text only."""
        for event in self:
            if isinstance(event, TextEvent):
                yield event.text

    def cancel(self) -> None:
        """End the answer with the tokens that it has. The last event follows, with the finish reason ``abort``."""
        self._stream.cancel()

    close = cancel

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()
