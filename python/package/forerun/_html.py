"""How notebooks show answers: accepted drafts in colour, rejected ones struck through, and the timeline."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .outputs import CompletionOutput, RequestOutput

_STYLES = {
    "draft": "color:#1a7f37;background:#dafbe1",
    "rejected": "color:#b3261e;text-decoration:line-through;opacity:.7",
}

_LEGEND = (
    f'<span style="{_STYLES["draft"]}">drafted and accepted</span> '
    f'<span style="{_STYLES["rejected"]}">drafted and rejected</span> '
    "the target's own"
)


def answer(output: CompletionOutput) -> str:
    """Return an answer as HTML."""
    return f'<div style="max-width:60em">{_text(output)}{_details(output)}</div>'


def request(output: RequestOutput) -> str:
    """Return a prompt and its answers as HTML."""
    prompt = f'<span style="opacity:.6">{escape(output.prompt or "")}</span>'
    parts = [f"{_text(one, prompt)}{_details(one)}" for one in output.outputs]
    return f'<div style="max-width:60em">{"<hr>".join(parts)}</div>'


def _text(output: CompletionOutput, prompt: str = "") -> str:
    spans = []
    for text, origin in output.segments:
        shown = escape(text.replace("\n", "\u23ce") if origin == "rejected" else text)
        style = _STYLES.get(origin)
        spans.append(f'<span style="{style}">{shown}</span>' if style else shown)
    return f'<div style="white-space:pre-wrap">{prompt}{"".join(spans)}</div>'


def _details(output: CompletionOutput) -> str:
    timeline = output.timeline()
    return (
        f'<div style="margin:.6em 0;font-size:85%">{_LEGEND}<br>{escape(output.summary)}</div>'
        f"<details><summary>timeline</summary>{timeline}</details>"
    )
