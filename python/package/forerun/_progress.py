"""A line about the progress of downloading and loading, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

#: The seconds between two lines.
_EVERY = 0.1


def is_shown(stream: TextIO | None) -> bool:
    """Return whether somebody sees what is written to a stream: at a terminal or in a notebook."""
    if stream is None:
        return False
    # The streams of notebooks are not terminals.
    return type(stream).__module__.startswith("ipykernel") or stream.isatty()


def reporter(wanted: bool) -> ProgressLine | None:
    """Return what shows progress on standard error, or None if nobody would see it."""
    return ProgressLine(sys.stderr) if wanted and is_shown(sys.stderr) else None


class ProgressLine:
    """A line that is written again and again, and disappears in the end."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._written: float | None = None
        self._width = 0

    def __call__(self, step: str, name: str, done: int, total: int) -> None:
        """Show how much of a step is done."""
        now = self._clock()
        if self._written is not None and now - self._written < _EVERY and done < total:
            return
        self._written = now
        self._write(_line(step, name, done, total))

    def clear(self) -> None:
        """Remove the line."""
        if self._width:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()

    def _write(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)


def _line(step: str, name: str, done: int, total: int) -> str:
    share = f"{100 * done // total if total else 100}%"
    if step == "download":
        return f"downloading {name}: {share} of {total / 1e6:.1f} MB"
    if step == "load":
        return f"loading {name}: {done} of {total} layers"
    return f"{step} {name}: {share}"
