"""The examples of the guide and of the README run."""

from __future__ import annotations

import re
from importlib.metadata import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("document", ["docs/guide/src/python.md", "README.md", "python/README.md"])
def test_examples_run(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / document).read_text()
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert examples
    names: dict[str, object] = {}
    for number, example in enumerate(examples, 1):
        exec(compile(example, f"{document}, example {number}", "exec"), names)
        assert capsys.readouterr().out.strip() or number == len(examples)


@pytest.mark.parametrize("name", ["LICENSE-MIT", "LICENSE-APACHE", "models/ATTRIBUTION.md"])
def test_the_package_has_the_licences(name: str) -> None:
    original = (ROOT / name).read_text()
    [copy] = [one for one in files("forerun") or [] if one.name == Path(name).name]
    assert copy.read_text() == original
    assert (ROOT / "python" / "licenses" / Path(name).name).read_text() == original
