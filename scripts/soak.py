"""Puts a server under mixed load for some minutes: answers, streams, slow readers, clients that go away, and nonsense.

Usage: soak.py --binary target/release/forerun [--minutes 10] [--clients 64] [--model MODEL --draft-model MODEL]

Reports the memory over time, what clients got, and the longest wait. Then equal requests of all clients at once show
whether the server is fair. It fails if a status is not the expected one, an answer differs from the same request alone,
a request takes over two minutes, the log has a panic, answers are left over, or memory grows by more than 10 % after the
first quarter.
"""

import argparse
import collections
import http.client
import json
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

LONGEST = 120
WORDS = "a the fox bear river found lost little said and then because of in house tree".split()


def request(port, method, path, body=b"", headers=None, timeout=LONGEST):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def raw(port, data, pause=0.0, read=0):
    """Sends bytes, waits, reads some bytes, and goes away."""
    with socket.create_connection(("127.0.0.1", port), timeout=LONGEST) as connection:
        connection.sendall(data)
        time.sleep(pause)
        return connection.recv(read) if read else b""


def head(path, length):
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


def cases(number):
    """Returns the bodies of the requests whose answers are compared."""
    drawn = random.Random(number)
    for seed in range(40):
        prompt = " ".join(drawn.choice(WORDS) for _ in range(drawn.randint(1, 120)))
        body = {"prompt": prompt, "max_tokens": drawn.randint(1, 120), "seed": seed, "ignore_eos": True,
                "temperature": drawn.choice([0, 0.7, 1.0])}
        speculation = drawn.choice([None, "off", {"method": "speculative"}])
        if speculation:
            body["speculation"] = speculation
        if drawn.random() < 0.2:
            body.update(guided_regex="[a-z ]{20,60}", ignore_eos=False)
        yield body


def text_of(port, body):
    status, answer = request(port, "POST", "/v1/completions", json.dumps(body))
    return status, json.loads(answer)["choices"][0]["text"] if status == 200 else answer[:200]


class Soak:
    def __init__(self, port):
        self.port, self.counts, self.failures, self.longest = port, collections.Counter(), [], 0.0
        self.ended, self.lock = threading.Event(), threading.Lock()
        self.expected = [(body, text_of(port, body)[1]) for body in cases(1)]

    def client(self, number):
        drawn = random.Random(number)
        kinds = [("answer", self.answer)] * 6 + [("stream", self.stream)] * 3 + [
            ("goes away", self.goes_away), ("slow reader", self.slow_reader), ("too large", self.too_large),
            ("malformed", self.malformed), ("half a request", self.half)]
        while not self.ended.is_set():
            kind, run = drawn.choice(kinds)
            began = time.monotonic()
            try:
                wrong = run(drawn)
            except Exception as error:
                wrong = repr(error)
            with self.lock:
                self.counts[kind] += 1
                if run in (self.answer, self.stream):
                    self.longest = max(self.longest, time.monotonic() - began)
                if wrong:
                    self.failures.append(f"{kind}: {wrong}")

    def answer(self, drawn):
        body, expected = drawn.choice(self.expected)
        status, text = text_of(self.port, body)
        return None if (status, text) == (200, expected) else f"{status} {text!r} instead of {expected!r}"

    def stream(self, drawn, pause=0.0):
        body, expected = drawn.choice(self.expected)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST)
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}),
                           {"Content-Type": "application/json"})
        text = ""
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
            time.sleep(pause)
        connection.close()
        return None if text == expected else f"{text!r} instead of {expected!r}"

    def slow_reader(self, drawn):
        return self.stream(drawn, 0.02)

    def goes_away(self, drawn):
        body = json.dumps({**drawn.choice(self.expected)[0], "stream": True, "max_tokens": 300}).encode()
        raw(self.port, head("/v1/completions", len(body)) + body, drawn.random() * 0.3, drawn.choice([0, 100]))

    def too_large(self, drawn):
        # The server may answer before it has read everything, and close.
        try:
            status, _ = request(self.port, "POST", "/v1/completions", b"x" * (9 << 20))
        except (BrokenPipeError, ConnectionResetError):
            return None
        return None if status == 413 else f"status {status}"

    def malformed(self, drawn):
        body = drawn.choice([b"", b"{", b"[]", b'{"prompt": 3}', b'{"prompt": "a", "max_tokens": -1}', b"\xff" * 99,
                             b'{"prompt": "a", "seed": "x"}', b'{"prompt": "a", "n": 99999}', b"[" * 100_000])
        status, answer = request(self.port, "POST", "/v1/completions", body)
        return None if status in (400, 422) and b"message" in answer else f"status {status} for {body[:40]}"

    def half(self, drawn):
        raw(self.port, head("/v1/completions", 1000) + b'{"prompt": ', drawn.random())


def memory(process):
    """Returns the resident memory in MB."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024


def fairness(port, clients):
    """Returns the slowest time of equal requests relative to the fastest."""
    seconds, start = [], threading.Barrier(clients)

    def one():
        start.wait()
        began = time.monotonic()
        text_of(port, {"prompt": "Once upon a time", "max_tokens": 100, "temperature": 0, "ignore_eos": True})
        seconds.append(time.monotonic() - began)
    threads = [threading.Thread(target=one) for _ in range(clients)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return max(seconds) / min(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--model")
    parser.add_argument("--draft-model")
    options = parser.parse_args()
    argv = [options.binary, "serve", "--port", "0", "--parallel", str(options.clients), "--queue", str(options.clients)]
    for name, value in (("--model", options.model), ("--draft-model", options.draft_model)):
        argv += [name, value] if value else []
    with tempfile.NamedTemporaryFile("r") as log:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=open(log.name, "w"), text=True)
        try:
            return soak(process, options, log)
        finally:
            process.kill()


def soak(process, options, log):
    port = int(re.search(r":(\d+)\s*$", process.stdout.readline()).group(1))
    while request(port, "GET", "/health")[0] != 200:
        time.sleep(0.1)
    soak = Soak(port)
    threads = [threading.Thread(target=soak.client, args=(number,)) for number in range(options.clients)]
    [thread.start() for thread in threads]
    began, megabytes = time.monotonic(), []
    while time.monotonic() - began < 60 * options.minutes and process.poll() is None:
        time.sleep(5)
        megabytes.append(memory(process))
    soak.ended.set()
    [thread.join() for thread in threads]
    if process.poll() is not None:
        print(f"the server ended with {process.returncode}: {log.read()[-2000:]}")
        return 1
    deadline = time.monotonic() + 30
    running = True
    while running and time.monotonic() < deadline:
        metrics = request(port, "GET", "/metrics")[1].decode()
        running = not re.search(r"num_requests_running(\{[^}]*\})? 0$", metrics, re.M)
        time.sleep(0.2)
    ratio = fairness(port, options.clients)
    quarters = [max(megabytes[len(megabytes) * part // 4:len(megabytes) * (part + 1) // 4] or [0]) for part in range(4)]
    print(f"requests: {dict(soak.counts)}, {sum(soak.counts.values())} in all")
    print("largest memory by quarter, MB:", ", ".join(f"{value:.0f}" for value in quarters))
    print(f"longest wait for an answer: {soak.longest:.1f} s; slowest to fastest of equal requests: {ratio:.2f}")
    for failure in soak.failures[:10]:
        print("failure:", failure, file=sys.stderr)
    panicked = "panicked" in log.read()
    failed = bool(soak.failures) or panicked or running or soak.longest > LONGEST or quarters[3] > 1.1 * quarters[0]
    print(f"{len(soak.failures)} failures" + (", a panic" if panicked else "") + (", answers left over" if running else ""))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
