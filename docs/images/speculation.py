"""Draws speculation.svg: a run of forerun, its text and its timeline, as an animated picture.

    forerun generate -p "Once upon a time" --method pearl --draft-tokens 3 --temperature 0.7 \
        --seed 3 -n 48 --show-drafts --trace run.json > run.txt 2> run.log
    forerun generate ... --json > run-tokens.json     # the same options: the same tokens
    python3 docs/images/speculation.py run.txt run.log run.json run-tokens.json models/target > docs/images/speculation.svg

Needs the Python package `tokenizers`.
"""

import json
import re
import sys
from html import escape

from tokenizers import Tokenizer

COMMAND = [
    '$ forerun generate --prompt "Once upon a time" --temperature 0.7 --seed 3 \\',
    "      --method pearl --draft-tokens 3 -n 48 --show-drafts --trace timeline.svg",
]
WIDTH, MARGIN = 900, 28
FONT, ADVANCE, LINE = 14, 8.43, 23
COLUMNS = int((WIDTH - 2 * MARGIN) / ADVANCE)
PLAY_S, HOLD_S = 11.0, 6.0
# It opens with the whole text, for viewers that do not play animations.
START_S = -PLAY_S - 1.5
LANES = {"drafter": 0, "target": 1}


def tokens_of(run, model):
    """The answer's tokens as texts."""
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    texts, before = [], ""
    for end in range(1, len(run["tokens"]) + 1):
        text = tokenizer.decode(run["tokens"][:end])
        texts.append(text[len(before):])
        before = text
    lost = len(run["text"]) - len(before)
    texts[0] = run["text"][:lost] + texts[0]
    assert "".join(texts) == run["text"]
    return texts


def spans_of(trace):
    """Jobs in order of their ends, in milliseconds from the first start."""
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    jobs = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] != "forward"]
    start = min(job["ts"] for job in jobs)
    spans = []
    for job in sorted(jobs, key=lambda job: job["ts"] + job["dur"]):
        spans.append({
            "lane": LANES[names[job["tid"]].split()[0]],
            "outcome": job["cat"],
            "start": (job["ts"] - start) / 1e3,
            "end": (job["ts"] + job["dur"] - start) / 1e3,
            "accepted": job["args"]["accepted"],
        })
    names = {LANES[name.split()[0]]: name for name in names.values()}
    return spans, names


def pieces_of(shown, texts, spans):
    """(time, kind, text): what each verification added."""
    marks = re.findall(r"\{\+(.*?)\+\}|\[-(.*?)-\](?!-)|([^\[{]+|.)", shown, re.S)
    rejected, length = {}, 0
    for accepted, wrong, own in marks:
        if wrong:
            rejected.setdefault(length, []).append(wrong)
        length += len(accepted) + len(own)
    assert length == sum(map(len, texts)), (length, sum(map(len, texts)))
    pieces, token, length = [], 0, 0
    verified = [span for span in spans if span["lane"] == LANES["target"]]
    for span in verified:
        # A correction; or the bonus token that ends the answer.
        own = span["outcome"] == "rejected" or span is verified[-1]
        for index in range(span["accepted"] + own):
            if token == len(texts):
                break
            if index == span["accepted"]:
                pieces += [(span["end"], "no", text) for text in rejected.get(length, [])]
            kind = "yes" if index < span["accepted"] else "own"
            pieces.append((span["end"], kind, texts[token]))
            length += len(texts[token])
            token += 1
    assert token == len(texts), (token, len(texts))
    return pieces


def layout(pieces, y):
    """(time, kind, text, x, y), wrapped like a terminal; and the last line's y."""
    placed, column = [], 0
    for time, kind, text in pieces:
        for part in re.split(r"(\n)", text):
            if part == "\n":
                y, column = y + (LINE if column else LINE * 0.55), 0
                continue
            while part:
                room = COLUMNS - column
                if len(part) > room:
                    # Wrap at a space where there is one.
                    cut = part.rfind(" ", 0, room + 1)
                    cut = cut if cut > 0 else (0 if column else room)
                    head, part = part[:cut], part[cut:].lstrip(" ") if kind != "no" else part[cut:]
                else:
                    head, part = part, ""
                if head:
                    placed.append((time, kind, head, MARGIN + column * ADVANCE, y))
                    column += len(head)
                if part:
                    y, column = y + LINE, 0
    return placed, y


def main():
    shown, log, trace, run, model = sys.argv[1:]
    run = json.load(open(run))
    shown = open(shown).read().removesuffix("\n")
    notes = [line for line in open(log).read().splitlines() if not line.startswith("no --model")]
    texts = tokens_of(run, model)
    spans, lanes = spans_of(json.load(open(trace)))
    pieces = pieces_of(shown, texts, spans)
    end = max(time for time, _, _ in pieces)
    spans = [span for span in spans if span["start"] < end]
    total = PLAY_S + HOLD_S

    out, keyframes = [], {}

    def appear(time):
        """The class of what appears at that time."""
        key = round(time / end * PLAY_S / total * 100, 2)
        return keyframes.setdefault(key, f"k{len(keyframes)}")

    def mono(x, y, text, kind, extra=""):
        return (f'<text x="{x:.1f}" y="{y:.1f}" class="m {kind}"{extra} '
                f'textLength="{len(text) * ADVANCE:.1f}">{escape(text)}</text>')

    y = 66
    for line in COMMAND:
        out.append(mono(MARGIN, y, line, "cmd"))
        y += LINE
    y += 10
    # The answer begins with a space, which a terminal shows, too.
    placed, y = layout(pieces, y)
    for time, kind, text, x, line in placed:
        name = appear(time)
        if kind == "no":
            # No strike across the leading space.
            stripped = text.lstrip(" ")
            x += (len(text) - len(stripped)) * ADVANCE
            text = stripped
        out.append(f'<g class="{name}">{mono(x, line, text, kind)}</g>')
    y += LINE + 12
    last = appear(end)
    for note in notes:
        for part in re.findall(r".{1,%d}(?:\s|$)" % COLUMNS, note):
            out.append(f'<g class="{last}">{mono(MARGIN, y, part.strip(), "note")}</g>')
            y += LINE
    # Legend.
    y += 8
    x = MARGIN
    for kind, label in [("yes", "drafted, accepted"), ("no", "drafted, rejected"), ("own", "the target's own")]:
        out.append(f'<text x="{x}" y="{y}" class="s {kind}">{escape(label)}</text>')
        x += 150
    terminal = y + 18

    # Timeline.
    top, bar, gap, left = terminal + 34, 30, 12, MARGIN + 108
    scale = (WIDTH - MARGIN - left) / end
    out.append(f'<text x="{MARGIN}" y="{terminal + 20}" class="s dim">the same run on two cores: '
               f'{end:.0f} ms, replayed {PLAY_S / end * 1e3:.0f} times slower</text>')
    for lane, name in lanes.items():
        y = top + lane * (bar + gap)
        out.append(f'<text x="{MARGIN}" y="{y + bar / 2 + 5}" class="s label">{escape(name)}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{WIDTH - MARGIN - left}" height="{bar}" rx="3" class="lane"/>')
    for span in spans:
        x, width = left + span["start"] * scale, max((min(span["end"], end) - span["start"]) * scale, 1.2)
        y = top + span["lane"] * (bar + gap)
        lane = "drafter" if span["lane"] == 0 else "target"
        shade = {"accepted": "", "rejected": " r", "wasted": " w", "open": " w"}[span["outcome"]]
        out.append(f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.6, 1):.1f}" height="{bar}" rx="1.5" '
                   f'class="{lane}{shade} {appear(span["end"])}"/>')
    bottom = top + 2 * bar + gap
    for tick in range(0, int(end) + 1, 2):
        x = left + tick * scale
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" class="s dim" text-anchor="middle">{tick}</text>')
    out.append(f'<text x="{WIDTH - MARGIN}" y="{bottom + 18}" class="s dim" text-anchor="end">ms</text>')
    y = bottom + 42
    x = left
    for style, label, step in [("drafter", "draft, accepted", 132), ("drafter r", "draft, rejected", 128),
                               ("drafter w", "draft, dropped", 128), ("target", "verify, all accepted", 158),
                               ("target r", "verify, one rejected", 0)]:
        out.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" rx="2" class="{style}"/>')
        out.append(f'<text x="{x + 17}" y="{y}" class="s dim">{escape(label)}</text>')
        x += step
    height = y + 20
    out.append(f'<line x1="{left}" x2="{left}" y1="{top - 6}" y2="{bottom + 4}" class="head"/>')

    far = WIDTH - MARGIN - left
    play = PLAY_S / total * 100
    frames = "".join(f"@keyframes {name}{{0%,{max(key - 0.01, 0):.2f}%{{opacity:0}}{key:.2f}%,100%{{opacity:1}}}}"
                     f".{name}{{animation:{name} {total}s {START_S}s linear infinite}}" for key, name in keyframes.items())
    style = (
        f".m{{font:{FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace;white-space:pre}}"
        ".s{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
        ".cmd{fill:#f0f6fc}.own{fill:#e6edf3}.yes{fill:#56d364}.no{fill:#ff7b72;text-decoration:line-through}"
        ".note,.dim{fill:#8b949e}.label{fill:#c9d1d9}"
        ".lane{fill:#161b22}.drafter{fill:#f0883e}.drafter.r{fill:#8f4a1a}.drafter.w{fill:#4a3525}"
        ".target{fill:#58a6ff}.target.r{fill:#2f5d94}.target.w{fill:#3d444d}"
        f".head{{stroke:#f0f6fc;stroke-width:1.2;opacity:.8;animation:head {total}s {START_S}s linear infinite}}"
        f"@keyframes head{{0%{{transform:translateX(0)}}{play:.2f}%{{transform:translateX({far}px)}}"
        f"{play + 0.01:.2f}%,100%{{transform:translateX({far}px);opacity:0}}}}"
        f"{frames}"
        "@media(prefers-reduced-motion:reduce){*{animation:none!important}.head{display:none}}"
    )
    label = ("A run of forerun: text with accepted draft tokens in green, rejected ones struck out in red, and the "
             "target's own in white; below, drafter and target working at the same time")
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
          f'height="{height:.0f}" role="img" aria-label="{escape(label)}" xml:space="preserve"><title>{escape(label)}</title>'
          f'<style>{style}</style>'
          f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="10" fill="#0d1117" stroke="#3d444d"/>'
          f'<path d="M1 36V11a10 10 0 0 1 10-10H{WIDTH - 11}a10 10 0 0 1 10 10V36z" fill="#161b22"/>'
          '<circle cx="22" cy="18" r="6" fill="#ff5f57"/><circle cx="42" cy="18" r="6" fill="#febc2e"/>'
          '<circle cx="62" cy="18" r="6" fill="#28c840"/>'
          f'<text x="{WIDTH / 2}" y="23" text-anchor="middle" class="s dim">forerun: PEARL drafts and verifies at the same time</text>'
          f'<line x1="1" x2="{WIDTH - 1}" y1="{terminal:.0f}" y2="{terminal:.0f}" stroke="#30363d"/>')
    print("\n".join(out))
    print("</svg>")


main()
