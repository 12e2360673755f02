"""Failures of requests: makes them smaller, and writes them as bodies for curl."""

import collections
import dataclasses
import json
import re
import time

from bodies import Request
from schemas import Pairs, Raw, encode

# Seconds in which a failure is made smaller, and the most kinds of failures for which that is done.
SHRINKING, MOST_KINDS = 10, 30


@dataclasses.dataclass
class Failure:
    request: Request
    reason: str

    def kind(self):
        """Returns what failures of the same kind have in common."""
        return re.sub(r"'[^']*'|\"[^\"]*\"|-?\d+", "…", self.reason.split(": ")[0])


def shrink(failure, alone):
    """Returns a smaller request with a failure of the same kind."""
    deadline, smallest = time.monotonic() + SHRINKING, failure
    try:
        value = json.loads(failure.request.body, object_pairs_hook=Pairs, parse_int=Raw, parse_float=Raw)
    except (ValueError, RecursionError):
        return failure
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for smaller in sorted(reductions(value), key=lambda one: len(encode(one))):
            request = dataclasses.replace(smallest.request, body=encode(smaller).encode(errors="surrogatepass"))
            if len(request.body) >= len(smallest.request.body) or time.monotonic() > deadline:
                break
            verdict = alone(request)
            if verdict.outcome == "failed" and Failure(request, verdict.reason).kind() == failure.kind():
                smallest, value, progress = Failure(request, verdict.reason), smaller, True
                break
    return smallest


def write(failures, folder, alone):
    """Writes a failure of each kind to a folder, the smallest body first. `alone` returns the verdict on a request."""
    kinds = collections.defaultdict(list)
    for failure in failures:
        kinds[failure.kind()].append(failure)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("[0-9][0-9]-*.json"):
        old.unlink()
    first = [(min(alike, key=lambda one: len(one.request.body)), len(alike)) for alike in kinds.values()]
    shrunk = [(shrink(failure, alone) if number < MOST_KINDS and failure.request.kind != "other" else failure, count)
              for number, (failure, count) in enumerate(first)]
    lines = ["# Failures\n"]
    for number, (failure, count) in enumerate(sorted(shrunk, key=lambda one: len(one[0].request.body)), 1):
        name = f"{number:02}-{re.sub(r'[^a-z]+', '-', failure.kind().lower())[:40].strip('-')}.json"
        (folder / name).write_bytes(failure.request.body)
        request = failure.request
        command = f"curl -s -H 'content-type: {request.content_type}' --data-binary @{name} http://127.0.0.1:8080{request.path}"
        reason = " ".join(failure.reason[:600].split())
        lines += [f"{number}. {request.number} ({count} of this kind): {reason}\n", "   ```sh", f"   {command}", "   ```"]
        if len(request.body) < 600:
            lines += ["   ```json", "   " + request.body.decode(errors="replace"), "   ```"]
    (folder / "failures.md").write_text("\n".join(lines) + "\n")


def reductions(value):
    """Returns the values that a value becomes if one part of it is left out or made smaller."""
    if isinstance(value, Pairs):
        for index, (key, item) in enumerate(value):
            yield Pairs(value[:index] + value[index + 1:])
            for smaller in reductions(item):
                yield Pairs([*value[:index], (key, smaller), *value[index + 1:]])
    elif isinstance(value, list):
        if len(value) > 3:
            yield value[:len(value) // 2]
            yield value[len(value) // 2:]
        for index, item in enumerate(value[:40]):
            yield value[:index] + value[index + 1:]
            for smaller in reductions(item):
                yield [*value[:index], smaller, *value[index + 1:]]
    elif isinstance(value, str) and not isinstance(value, Raw) and len(value) > 3:
        yield value[:len(value) // 2]
        yield value[len(value) // 2:]
    if isinstance(value, (Pairs, list)):
        yield from [item for _, item in value] if isinstance(value, Pairs) else value
