"""Runs each `forerun simulate paper` command of the documents again, and compares its table with the printed one.

Usage: check_papers.py BINARY [--update] [FILE …]      (BINARY has the feature `laboratory`)

A command stands in a heading, or after "**Simulated** (" at the beginning of a line. Its table is
the first one after it. It may be an excerpt: some of the rows and columns, in the order of the
command. Tables have the means of 400 texts, unless the command has `--texts`
(docs/papers/README.md). `--update` writes the new tables.
"""

import concurrent.futures
import itertools
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMAND = re.compile(r"^(?:#+ |\*\*Simulated\*\* \()`forerun (simulate paper [^`]+)`")


def is_row(line):
    return line.startswith("|")


def tables(path):
    """Yields the command and the rows of each simulated table of a document."""
    lines = path.read_text().splitlines()
    for at, line in enumerate(lines):
        if found := COMMAND.match(line):
            after = itertools.dropwhile(lambda line: not is_row(line), lines[at:])
            yield found[1], list(itertools.takewhile(is_row, after))


def simulated(binary, command):
    """Returns the rows of the table that the command prints."""
    arguments = shlex.split(command)
    if "--texts" not in arguments:
        arguments += ["--texts", "400"]
    done = subprocess.run([binary, *arguments], cwd=ROOT, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"forerun {command}: {done.stderr}")
    return [line for line in done.stdout.splitlines() if is_row(line)]


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


def excerpt(printed, now):
    """Returns the rows and columns of `now` that a document prints, or all of it if it lacks some.

    A row of the document is the one with which it has the most cells in common.
    """
    headings, wanted = cells(now[0]), cells(printed[0])
    columns = []
    for heading in wanted:
        start = columns[-1] + 1 if columns else 0
        if heading not in headings[start:]:
            return now
        columns.append(headings.index(heading, start))
    left = [[cells(row)[column] for column in columns] for row in now[2:]]
    rows = []
    for row in map(cells, printed[2:]):
        if not left:
            return now
        nearest = max(left, key=lambda other: sum(map(str.__eq__, row, other)))
        left.remove(nearest)
        rows.append(nearest)
    table = [wanted, ["---"] * len(wanted), *rows]
    return [f"| {' | '.join(row)} |" for row in table]


def differences(printed, now):
    """Returns what differs between two tables, a line each."""
    if len(printed) != len(now) or cells(printed[0]) != cells(now[0]):
        return [f"  printed: {printed[0]} ({len(printed)} rows)", f"  now:     {now[0]} ({len(now)} rows)"]
    # The second line separates the headings.
    headings, pairs = cells(now[0]), zip(printed[2:], now[2:], strict=True)
    return [
        f"  {' '.join(cells(new)[:2])}, {heading}: printed {was}, now {found}"
        for old, new in pairs
        for heading, was, found in zip(headings, cells(old), cells(new), strict=True)
        if was != found
    ]


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--update"]
    if not arguments:
        sys.exit(__doc__)
    binary = pathlib.Path(arguments[0]).resolve()
    documents = [pathlib.Path(name) for name in arguments[1:]] or [
        *sorted((ROOT / "docs/papers").glob("*.md")),
        ROOT / "docs/guide/src/several-machines.md",
    ]
    found = [(path, *table) for path in documents for table in tables(path)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda table: simulated(binary, table[1]), found))
    changed = 0
    for (path, command, printed), whole in zip(found, results, strict=True):
        now = excerpt(printed, whole)
        lines = differences(printed, now)
        compared = sum(len(cells(row)) for row in now[2:])
        equal = compared - len(lines) if len(printed) == len(now) else 0
        rows = f"{len(now) - 2} of {len(whole) - 2} rows"
        print(f"{path.name}: {command}: {rows}, {equal} of {compared} cells are equal")
        print("\n".join(lines), end="\n" if lines else "")
        changed += bool(lines)
        if lines and "--update" in sys.argv:
            text = path.read_text()
            assert text.count("\n".join(printed)) == 1
            path.write_text(text.replace("\n".join(printed), "\n".join(now)))
    print(f"{len(found)} tables, {changed} of them differ")
    sys.exit(changed > 0 and "--update" not in sys.argv)


main()
