"""What tests share: the demonstration pair and the `forerun` command."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import forerun
import pytest

PROMPT = "Once upon a time"


@pytest.fixture(scope="session")
def llm() -> Iterator[forerun.LLM]:
    """The demonstration pair."""
    with forerun.LLM() as llm:
        yield llm


@pytest.fixture(scope="session")
def command() -> str:
    """The command that the wheel installs."""
    found = shutil.which("forerun", path=sysconfig.get_path("scripts"))
    assert found is not None, f"no command forerun beside {sys.executable}"
    return found


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration target as a folder of the repository."""
    return Path(__file__).parents[2] / "models" / "target"
