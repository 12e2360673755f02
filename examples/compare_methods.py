#!/usr/bin/env python3
"""Compares the methods on one prompt, and draws their speeds and what became of the draft tokens as a picture.

    python3 examples/compare_methods.py --model TARGET --draft-model DRAFTER --output methods.svg

It runs `forerun generate --json` once for each method, after a run that warms up. It checks that all texts are equal.
One prompt says little: `forerun bench run` compares methods properly.
"""

import argparse
import html
import json
import subprocess

METHODS = ["autoregressive", "speculative", "pearl", "dsi"]
ACCEPTED, REJECTED, OWN = "#2a9d5c", "#d1495b", "#8d99ae"


def generate(options, method):
    """Returns the report of `forerun generate` with a method."""
    command = [options.forerun, "generate", "--json", "--prompt", options.prompt]
    command += ["--temperature", "0", "--max-tokens", str(options.max_tokens), "--method", method]
    if options.model:
        command += ["--model", options.model]
    if options.draft_model:
        command += ["--draft-model", options.draft_model]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def bar(x, y, width, colour, label):
    label = html.escape(label)
    return f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0):.1f}" height="22" fill="{colour}"><title>{label}</title></rect>'


def picture(reports):
    """Returns an SVG with a row for each method: its speed, and its tokens by origin."""
    fastest = max(report["timings"]["tokens_per_second"] for report in reports.values())
    plain = reports["autoregressive"]["timings"]["tokens_per_second"]
    rows = []
    for number, (method, report) in enumerate(reports.items()):
        y = 60 + 40 * number
        speed = report["timings"]["tokens_per_second"]
        speculative = report["usage"]["speculative"]
        accepted = sum(speculative["accepted_per_position"])
        rejected = speculative["draft_tokens"] - accepted
        own = report["usage"]["completion_tokens"] - accepted
        rows.append(f'<text x="10" y="{y + 16}">{method}</text>')
        rows.append(bar(130, y, 260 * speed / fastest, "#3d5a80", f"{speed:.0f} tokens/s"))
        rows.append(f'<text x="{135 + 260 * speed / fastest:.0f}" y="{y + 16}">{speed:.0f} ({speed / plain:.2f} ×)</text>')
        x, scale = 520, 260 / max(accepted + rejected + own, 1)
        for count, colour, name in [(accepted, ACCEPTED, "accepted"), (own, OWN, "of the target"), (rejected, REJECTED, "rejected")]:
            rows.append(bar(x, y, count * scale, colour, f"{count} {name}"))
            x += count * scale
    legend = "".join(
        f'<text x="{520 + 95 * n}" y="45" fill="{colour}">{name}</text>'
        for n, (name, colour) in enumerate([("accepted", ACCEPTED), ("target’s own", OWN), ("rejected", REJECTED)])
    )
    height = 80 + 40 * len(reports)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="800" height="{height}" font-family="sans-serif" font-size="13">'
        f'<rect width="800" height="{height}" fill="white"/>'
        '<text x="130" y="25" font-weight="bold">tokens per second (of plain decoding)</text>'
        f'<text x="520" y="25" font-weight="bold">tokens by origin</text>{legend}{"".join(rows)}</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forerun", default="forerun", help="the command")
    parser.add_argument("--model")
    parser.add_argument("--draft-model")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--output", default="methods.svg")
    options = parser.parse_args()
    generate(options, METHODS[0])
    reports = {method: generate(options, method) for method in METHODS}
    texts = {report["text"] for report in reports.values()}
    assert len(texts) == 1, "every method writes the text of plain decoding"
    for method, report in reports.items():
        print(f"{method:15} {report['timings']['tokens_per_second']:8.1f} tokens/s")
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(picture(reports))
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
