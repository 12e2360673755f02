"""Progress of loading on standard error."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from forerun._progress import ProgressLine, is_shown


def test_a_line_is_written_again_and_disappears() -> None:
    now = 0.0
    stream = io.StringIO()
    line = ProgressLine(stream, lambda: now)
    line("download", "a/b model.safetensors", 1_000_000, 4_000_000)
    assert stream.getvalue() == "\rdownloading a/b model.safetensors: 25% of 4.0 MB"
    # Too soon for another line, unless the step has ended.
    line("download", "a/b model.safetensors", 2_000_000, 4_000_000)
    assert "50%" not in stream.getvalue()
    line("download", "a/b model.safetensors", 4_000_000, 4_000_000)
    assert stream.getvalue().endswith("100% of 4.0 MB")
    now = 1.0
    line("load", "a/b", 3, 12)
    # The rest of the longer line is overwritten.
    assert stream.getvalue().rstrip(" ").endswith("\rloading a/b: 3 of 12 layers")
    line.clear()
    assert stream.getvalue().endswith("\r" + " " * len("loading a/b: 3 of 12 layers") + "\r")


def test_terminals_and_notebooks_show_progress() -> None:
    assert not is_shown(None) and not is_shown(io.StringIO())

    class OutStream(io.StringIO):
        """The stream of a notebook."""

    OutStream.__module__ = "ipykernel.iostream"
    assert is_shown(OutStream())


def load(options: str, stderr: int) -> None:
    script = f"import forerun; forerun.LLM({options})"
    subprocess.run([sys.executable, "-c", script], check=True, stderr=stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
@pytest.mark.parametrize(("options", "is_expected"), [("", True), ("progress=False", False)])
def test_loading_at_a_terminal(options: str, is_expected: bool) -> None:
    reader, writer = os.openpty()
    try:
        load(options, writer)
        # So that there is something to read.
        os.write(writer, b"end")
        shown = os.read(reader, 100_000).decode()
    finally:
        os.close(writer)
        os.close(reader)
    assert ("loading" in shown and "layers" in shown) == is_expected


def test_loading_without_a_terminal() -> None:
    script = "import forerun; forerun.LLM()"
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert ended.stderr == b"" and ended.stdout == b""
