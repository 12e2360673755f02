"""Sends random and edited requests to `forerun serve`, beside other clients whose answers must stay equal.

Usage: traffic.py --binary target/release/forerun [--seed 1] [--random 10000] [--edited 2000] [--clients 3]
                  [--failures target/traffic] [-- OPTIONS OF forerun serve]          (pip install jsonschema)

Every answer must be well-formed and accepted by its schema, or an error of the request that names a field. The run fails
if the server ends, a request takes longer than the server's limit, an answer of another client changes, a drafter
fails, memory grows, or the server is not at rest afterwards. Failures are made smaller, and written to a folder as bodies
for curl. Request N of a seed is always the same.
"""

import argparse
import collections
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import answers
import bodies
import edits
import failures
import judge
from bodies import CHAT, COMPLETIONS, LEAVES, MESSAGES, RESPONSES, Request
from failures import Failure

# Bodies beyond the server's limit (8 MiB) may be refused while they are sent.
LARGEST_BODY = 8 << 20
# Seconds beyond the server's own limit of a request.
MARGIN = 10
# Growth of memory that a run may have after its warm-up: a share, and MiB for what allocators keep.
GROWTH, SLACK = 0.1, 64

STORY = {"prompt": "Once upon a time, there was", "max_tokens": 40}
OTHERS = [
    (COMPLETIONS, {**STORY, "temperature": 0, "logprobs": 3}),
    (COMPLETIONS, {**STORY, "temperature": 1, "seed": 5, "n": 2}),
    (COMPLETIONS, {**STORY, "temperature": 1.3, "seed": 9, "stream": True, "top_p": 0.9}),
    (COMPLETIONS, {**STORY, "temperature": 2, "seed": 3, "guided_regex": "[a-z ]{20,60}"}),
    (CHAT, {"messages": bodies.HELLO, "max_tokens": 30, "temperature": 0}),
    (CHAT, {
        "messages": bodies.HELLO, "max_tokens": 120, "temperature": 1.5, "seed": 4,
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": edits.PERSON}}
    }),
    (CHAT,
     {"messages": edits.CALLED, "tools": edits.TOOLS, "tool_choice": "required", "seed": 2, "max_tokens": 120, "stream": True}),
    (MESSAGES, {"messages": bodies.HELLO, "max_tokens": 25, "temperature": 0}),
    (MESSAGES,
     {"messages": bodies.HELLO, "max_tokens": 120, "temperature": 0, "tools": edits.CLAUDE_TOOLS,
      "tool_choice": {"type": "any"}}),
    (RESPONSES, {"input": "Hello", "max_output_tokens": 25, "temperature": 0}),
]


class Hangs(Exception):
    """No answer within the limit."""


class Gone(Exception):
    """The connection ended without an answer."""


class Server:
    """A running server, with its memory over time."""

    def __init__(self, options, folder):
        self.log = folder / f"log-{time.monotonic_ns()}"
        argv = [options.binary, "serve", "--port", "0", "--request-seconds", str(options.request_seconds), "--cache-bytes", "16M"]
        argv += ["--drain-seconds", "2", "--log-level", "warn", "--served-model-name", "forerun", *options.serve]
        env = {key: value for key, value in os.environ.items() if not key.startswith("FORERUN_")} | {"RUST_BACKTRACE": "0"}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)\s*$", line)
        if not found:
            raise SystemExit(f"the server does not start: {line}{self.log.read_text()[-500:]}")
        self.port, self.memory, self.killed = int(found.group(1)), [], False

    def alive(self):
        return self.process.poll() is None

    def processes(self):
        """Returns the folders in /proc of the server and of processes that it started."""
        own = pathlib.Path(f"/proc/{self.process.pid}")
        with contextlib.suppress(OSError):
            children = [path.read_text().split() for path in own.glob("task/*/children")]
            return [own, *(pathlib.Path(f"/proc/{child}") for some in children for child in some)]
        return [own]

    def read_memory(self):
        """Returns the resident memory in bytes of each process."""
        sizes = []
        for process in self.processes():
            with contextlib.suppress(OSError):
                found = re.search(r"VmRSS:\s+(\d+)", (process / "status").read_text())
                sizes += [int(found.group(1)) * 1024] if found else []
        return sizes

    def read_seconds(self):
        """Returns the time of all cores so far."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(OSError):
                total += sum(map(int, (process / "stat").read_text().rsplit(")", 1)[1].split()[11:15]))
        return total / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Ends the server with SIGTERM. Returns whether that was enough."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(2 + MARGIN)
            return True
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False

    def end(self):
        """What the log says about the end of the server."""
        return " ".join(self.log.read_text(errors="replace").split())[-300:]


def send(port, request, seconds):
    """Returns the status and the body of an answer."""
    deadline = time.monotonic() + seconds
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        headers = {"Content-Type": request.content_type} if request.content_type else {}
        try:
            connection.request("POST", request.path, request.body, headers)
        except (BrokenPipeError, ConnectionResetError):
            # The server may have answered already.
            pass
        taken = connection.sock
        response = connection.getresponse()
        body = bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Hangs(f"no end after {seconds} s")
            taken.settimeout(left)
            piece = response.read1(1 << 16)
            if not piece:
                return response.status, bytes(body)
            body += piece
    except TimeoutError:
        raise Hangs(f"no answer after {seconds} s") from None
    except (OSError, http.client.HTTPException, AttributeError) as error:
        raise Gone(repr(error)) from None
    finally:
        connection.close()


def leave(port, request):
    """Sends a request, and goes away after a while."""
    drawn = random.Random(request.number)
    head = f"POST {request.path} HTTP/1.1\r\nHost: x\r\nContent-Type: {request.content_type}\r\nContent-Length: {len(request.body)}\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=MARGIN) as connection:
            connection.sendall(head.encode() + request.body[:drawn.choice(
                [len(request.body), len(request.body), len(request.body) // 2])])
            connection.settimeout(drawn.choice([0.001, 0.05, 0.3]))
            connection.recv(drawn.choice([1, 100, 5000]))
    except OSError:
        pass


class Traffic:
    """A run: its server, its clients, and what they saw."""

    def __init__(self, options, folder):
        self.options, self.folder, self.limit = options, folder, options.request_seconds + MARGIN
        self.lock, self.ended, self.broken = threading.Lock(), threading.Event(), threading.Event()
        self.table, self.refusals, self.failures, self.others = collections.defaultdict(
            collections.Counter), collections.Counter(), [], collections.Counter()
        self.slowest, self.suspects, self.left = collections.Counter(), [], collections.deque(maxlen=8)
        self.server, self.references = Server(options, folder), []

    # ---- The other clients.

    def other(self, path, body):
        """Returns what another client gets, without what may differ, and the failures of drafters."""
        status, answer = send(self.server.port, Request("other", "other", path, json.dumps(body).encode()), self.limit)
        if status != 200:
            raise judge.Wrong(f"another client gets status {status}: {answer[:300]!r}")
        read = (answers.streamed if body.get("stream") else answers.whole)(path, answer)
        logprobs = [choice.get("logprobs") for choice in json.loads(answer).get("choices", [])] if body.get("logprobs") else []
        return ([dataclasses.astuple(choice) for choice in read.choices], logprobs), read.failures

    def be_another(self, number):
        for turn in range(number, 1 << 60):
            if self.ended.wait(self.options.pause):
                return
            server, (path, body), reference = self.server, OTHERS[turn % len(OTHERS)], self.references[turn % len(OTHERS)]
            if self.broken.is_set():
                continue
            began, wrong = time.monotonic(), None
            try:
                answer, failed = self.other(path, body)
                if failed:
                    wrong = f"a drafter failed: {failed[0]}"
                if answer != reference:
                    wrong = f"another client's answer changed: {str(answer)[:300]} instead of {str(reference)[:300]}"
            except Exception as error:
                wrong = str(error) if isinstance(error, judge.Wrong) else f"another client gets no answer: {error!r}"
            full = wrong and "status 429" in wrong
            if full or self.broken.is_set() or server is not self.server or not server.alive():
                continue
            with self.lock:
                self.slowest["other clients"] = max(self.slowest["other clients"], time.monotonic() - began)
                self.others["wrong" if wrong else "equal"] += 1
                if wrong:
                    self.failures.append(Failure(Request("other", "other", path, json.dumps(body).encode()), wrong))

    def watch(self):
        while not self.ended.wait(0.25):
            sizes = self.server.read_memory()
            self.server.memory += sizes[:1]
            if sum(sizes) > self.options.most_memory << 20:
                # Before the machine has no memory left.
                self.server.killed = True
                self.server.process.kill()

    # ---- The requests.

    def perform(self, request):
        """Returns the verdict on a request, and the seconds of its answer. Raises `Hangs` or `Gone` if there is none."""
        began = time.monotonic()
        if request.manner == LEAVES:
            leave(self.server.port, request)
            self.left.append(request)
            return judge.Verdict("left"), time.monotonic() - began
        try:
            status, body = send(self.server.port, request, self.limit)
        except Gone:
            if len(request.body) > LARGEST_BODY and self.server.alive():
                return judge.Verdict("refused", "a body beyond the limit"), time.monotonic() - began
            raise
        seconds = time.monotonic() - began
        return judge.judge(request.path, request.body, status, body), seconds

    def note(self, request, verdict, seconds=0.0):
        with self.lock:
            row = f"{request.kind} {request.path}"
            self.table[row][verdict.outcome] += 1
            self.table[row]["compared"] += verdict.compared
            self.slowest[row] = max(self.slowest[row], seconds)
            if verdict.outcome == "refused":
                self.refusals[" ".join(re.sub(r"'[^']*'|\"[^\"]*\"|-?\d+", "…", verdict.reason).split())[:110]] += 1
            if verdict.outcome == "failed":
                self.failures.append(Failure(request, verdict.reason))
                print(f"{request.number}: {verdict.reason[:300]}", file=sys.stderr, flush=True)

    def client(self, requests):
        while not self.broken.is_set():
            with self.lock:
                request = next(requests, None)
            if request is None:
                return
            try:
                if not self.server.alive():
                    raise Gone("the server has ended")
                self.note(request, *self.perform(request))
            except (Hangs, Gone) as error:
                self.broken.set()
                with self.lock:
                    self.suspects.append((request, error))
            except Exception as error:
                self.note(request, judge.Verdict("failed", f"the judge fails: {error!r}"))

    def restart(self):
        if self.server.alive() and not self.server.stop():
            self.others["SIGTERM did not end the server"] += 1
        self.server = Server(self.options, self.folder)

    def alone(self, request):
        """Returns the verdict on a request that nothing runs beside. The server is new afterwards if it failed."""
        try:
            return self.perform(dataclasses.replace(request, manner=bodies.READS))[0]
        except Hangs as error:
            reason = f"hangs: {error}"
        except Gone as error:
            self.server.process.poll() or time.sleep(0.5)
            over = f"takes more than {self.options.most_memory} MiB of memory" if self.server.killed else None
            reason = over or (f"the connection ends without an answer: {error}" if self.server.alive() else
                              f"the server ends: {self.server.process.returncode}, {self.server.end()}")
        self.restart()
        return judge.Verdict("failed", reason)

    def repair(self):
        """Starts another server, and finds out which request ended the last one."""
        reason = "" if self.server.alive() else f" ({self.server.process.returncode}: {self.server.end()})"
        self.restart()
        suspects, self.suspects = self.suspects, []
        verdicts = [(request, self.alone(request)) for request, _ in suspects]
        if all(verdict.outcome != "failed" for _, verdict in verdicts):
            for request in list(self.left):
                verdict = self.alone(request)
                if verdict.outcome == "failed":
                    verdicts.append((request, verdict))
                    break
            else:
                request, error = suspects[0]
                verdicts[0] = (request, judge.Verdict("failed", f"fails only in company: {error!r}{reason}"))
        for request, verdict in verdicts:
            self.note(request, verdict)
        self.left.clear()
        self.broken.clear()

    def run(self, requests):
        """Sends all requests. Returns what is wrong with the server afterwards, if anything."""
        # The answers of the idle server.
        self.references = [self.other(*other)[0] for other in OTHERS]
        others = [(number * 3,) for number in range(self.options.others)]
        threads = [threading.Thread(target=self.be_another, args=number, daemon=True) for number in others]
        for thread in [*threads, threading.Thread(target=self.watch, daemon=True)]:
            thread.start()
        while True:
            clients = [threading.Thread(target=self.client, args=(requests,)) for _ in range(self.options.clients)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            if not self.broken.is_set():
                break
            self.repair()
        rest = self.rest()
        self.ended.set()
        for thread in threads:
            thread.join()
        return rest

    # ---- Afterwards.

    def rest(self):
        """Returns what is wrong with the server after the last request, if anything."""
        self.ended.set()
        deadline, server = time.monotonic() + self.limit, self.server
        while time.monotonic() < deadline:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=MARGIN)
                connection.request("GET", "/metrics")
                metrics = connection.getresponse().read().decode()
            except OSError as error:
                return f"the server does not answer: {error}"
            before = server.read_seconds()
            time.sleep(2)
            if len(re.findall(r"num_requests_(?:running|waiting)\{[^}]*\} 0$", metrics,
                              re.M)) == 2 and server.read_seconds() - before < 0.2:
                return None
        return f"the server still works: {re.findall('num_requests.*', metrics)}, {server.read_seconds() - before:.1f} s in 2 s"

    def memory(self):
        """Returns the usual memory of the first and of the last quarter after the warm-up, and the largest, in MiB."""
        samples = [size >> 20 for size in self.server.memory[len(self.server.memory) // 10:]] or [0]
        quarter = max(len(samples) // 4, 1)
        return statistics.median(samples[:quarter]), statistics.median(samples[-quarter:]), max(samples)


def report(traffic, rest, seconds):
    """Prints what happened, and returns whether all is well."""
    outcomes = ("answered", "compared", "refused", "busy", "left", "failed")
    lines = ["| requests | number | " + " | ".join(outcomes) + " | slowest |", "|---|" + "---:|" * (len(outcomes) + 2)]
    total = collections.Counter()
    for row, counts in sorted(traffic.table.items()):
        total.update(counts)
        lines.append(line_of(row, counts, outcomes, traffic.slowest[row]))
    lines.append(line_of("all", total, outcomes, max(traffic.slowest.values(), default=0)))
    first, last, most = traffic.memory()
    panics = sum("panicked" in log.read_text(errors="replace") for log in traffic.folder.glob("log-*"))
    checks = [
        (last <= first * (1 + GROWTH) + SLACK, f"memory: {first:.0f} MiB in the first quarter, {last:.0f} MiB in the last, {most} MiB at most"),
        (not rest, f"at rest afterwards{': ' + rest if rest else ''}"),
        (not traffic.others["SIGTERM did not end the server"], "SIGTERM ends the server"),
        (not panics, f"logs without panics{f': {panics} have one' if panics else ''}"),
    ]
    print("\n".join(lines))
    print(f"other clients: {traffic.others['equal']} equal answers, {traffic.others['wrong']} wrong ones, "
          f"{traffic.slowest['other clients']:.1f} s at most")
    for good, text in checks:
        print(f"{'ok' if good else 'FAILED'}: {text}")
    if traffic.refusals:
        print("most frequent refusals:")
        for message, count in traffic.refusals.most_common(traffic.options.refusals):
            print(f"{count:6}  {message}")
    failed = total["failed"] + traffic.others["wrong"] + sum(not good for good, _ in checks)
    passed = sum(total[outcome] for outcome in outcomes if outcome not in ("failed", "compared")) + traffic.others["equal"] + sum(
        good for good, _ in checks)
    if traffic.failures:
        print(f"failures: {traffic.options.failures}/failures.md")
    print(f"{seconds:.0f} s\n{passed} passed, {failed} failed")
    return not failed


def line_of(name, counts, outcomes, slowest):
    number = sum(counts[outcome] for outcome in outcomes if outcome != "compared")
    return f"| {name} | {number} | " + " | ".join(str(counts[outcome]) for outcome in outcomes) + f" | {slowest:.1f} s |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--random", type=int, default=10_000, help="number of random requests")
    parser.add_argument("--edited", type=int, default=2_000, help="number of edited requests")
    parser.add_argument("--clients", type=int, default=3, help="clients that send them")
    parser.add_argument("--others", type=int, default=2, help="other clients, whose answers must stay equal")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between the requests of another client")
    parser.add_argument("--request-seconds", type=int, default=30, help="the server's limit of a request")
    parser.add_argument("--most-memory", type=int, default=4096, help="MiB at which the server is killed")
    parser.add_argument("--refusals", type=int, default=10, help="number of refusals to list")
    parser.add_argument("--failures", type=pathlib.Path, default=pathlib.Path("target/traffic"), help="folder for failures")
    parser.add_argument("serve", nargs="*", help="options of the server, after --")
    options = parser.parse_args()
    if not os.access(options.binary, os.X_OK):
        parser.error(f"{options.binary} is no program")
    # Requests may be nested deeply.
    sys.setrecursionlimit(30_000)
    sys.set_int_max_str_digits(0)
    threading.stack_size(256 << 20)
    every = [(bodies.random_request, number) for number in range(options.random)] + [(edits.edited_request, number)
                                                                                     for number in range(options.edited)]
    random.Random(options.seed).shuffle(every)
    with tempfile.TemporaryDirectory() as folder:
        traffic, began = Traffic(options, pathlib.Path(folder)), time.monotonic()
        try:
            rest = traffic.run(draw(options.seed, number) for draw, number in every)
            good = report(traffic, rest, time.monotonic() - began)
            if traffic.failures:
                failures.write(traffic.failures, options.failures, traffic.alone)
        finally:
            traffic.ended.set()
            traffic.server.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
