"""The command that the wheel installs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from conftest import PROMPT


def test_the_command_and_the_module_are_the_same(command: str) -> None:
    lines = [[command, "--version"], [sys.executable, "-m", "forerun", "--version"]]
    outputs = [
        subprocess.run(line, check=True, capture_output=True, text=True).stdout for line in lines
    ]
    assert outputs[0] == outputs[1] and outputs[0].startswith("forerun ")


def test_errors_name_flags_and_have_exit_codes(command: str) -> None:
    def run(*options: str) -> tuple[int, str]:
        ended = subprocess.run([command, *options], capture_output=True, text=True)
        return ended.returncode, ended.stderr

    code, error = run("generate", "--prompt", PROMPT, "--top-p", "2")
    assert code == 1 and "--top-p is 2" in error
    code, error = run("generate", "--magic")
    assert code == 2 and "--magic" in error


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_ctrl_c_ends_the_command(command: str) -> None:
    line = [command, "serve", "--port", "0"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert "listening" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.wait() == 0
