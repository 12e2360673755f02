"""Clients of `forerun serve` that send nonsense, go away, or never stop."""

import contextlib
import copy
import json
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import edits
from harness import Case


@contextlib.contextmanager
def server(runner, folder, *options):
    argv = runner.command(["serve", "--port", "0", *options], folder)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=open(folder / "log", "w"), text=True)
    try:
        line = process.stdout.readline()
        port = int(re.search(r":(\d+)\s*$", line).group(1))
        yield port
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def post(port, path, body, headers=None, timeout=30):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def healthy(port, folder):
    """Returns what is wrong with a server after a case."""
    status, body = post(port, "/v1/completions", {"prompt": "Once", "max_tokens": 2})
    if status != 200:
        return f"status {status} afterwards: {body[:200]}"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            metrics = response.read().decode()
        if re.search(r"num_requests_running\{[^}]*\} 0$", metrics, re.M):
            break
        time.sleep(0.05)
    else:
        return "answers are still running"
    log = (folder / "log").read_text()
    return f"the log has a panic: {log[-300:]}" if "panicked" in log else None


def body_case(name, path, body, statuses=(400,), headers=None, field=None):
    def run(runner, folder):
        with server(runner, folder) as port:
            status, answer = post(port, path, body, headers)
            if status not in statuses:
                return f"status {status}: {answer[:300]}"
            if status >= 400:
                error = json.loads(answer).get("error", {})
                if not error.get("message") or field and error.get("param") != field:
                    return f"{answer[:300]}"
            return healthy(port, folder)
    return Case("server: bodies", name, [], run=run)


def bodies():
    for path in ("/v1/completions", "/v1/chat/completions"):
        for name, body in {"nothing": b"", "not JSON": b"{", "a number": b"7", "a list": b"[]", "null": b"null",
                           "Latin-1": b'{"prompt": "\xe9"}', "deep": b"[" * 100_000, "NULs": b"\0" * 100}.items():
            yield body_case(f"{path}: {name}", path, body)
    base = {"prompt": "Once", "max_tokens": 2}
    wrong = {
        "max_tokens": [-1, "x", 1.5, 10**30, [], None], "temperature": [-1, 3e9, "x", []], "top_p": [0, -1, 2, "x"],
        "n": [0, -1, 1000, "x", 1.5], "stop": [3, [3], {}, ["a"] * 1000], "seed": ["x", 1.5, 10**30],
        "logprobs": [-1, 1000, "x"], "logit_bias": ["x", {"x": 1}, {"1": 1000}, {"999999": 1}, []],
        "presence_penalty": [9, "x"], "frequency_penalty": [-9, "x"], "stream": ["x", 3], "prompt": [3, {}, [[]], [[-1]],
        [[10**9]], ["a", 3], None, []], "top_k": [-5, "x"], "min_p": [-1, 2, "x"], "speculation": ["x", 3, {"method": "x"}],
        "repetition_penalty": [0, -1, "x"], "stream_options": [3, "x"], "model": [3, "another"], "echo": ["x"],
        "best_of": [-1, "x"], "ignore_eos": ["x"],
    }
    for field, values in wrong.items():
        for value in values:
            yield body_case(f"{field} = {str(value)[:40]}", "/v1/completions", {**base, field: value}, (200, 400, 404))
    for name, messages in {"none": [], "a text": "x", "no role": [{"content": "x"}], "an unknown role": [
            {"role": "x", "content": "x"}], "a number": [3], "no content": [{"role": "user"}], "parts": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
            "many": [{"role": "user", "content": "x"}] * 5000, "null": None}.items():
        yield body_case(f"messages: {name}", "/v1/chat/completions", {"messages": messages, "max_tokens": 2}, (200, 400))
    yield body_case("a long prompt", "/v1/completions", {"prompt": "word " * 100_000, "max_tokens": 2}, (400,), field="prompt")
    yield body_case("a body beyond the limit", "/v1/completions", b" " * (9 << 20), (413,))
    for path in ("/", "/x", "/v1", "/v1/models/x", "/../etc/passwd", "/v1/completions/"):
        yield body_case(f"POST {path}", path, base, (404, 405))
    for body in ({"content": 3}, {}, {"content": "x" * 10**6}, {"tokens": "x"}, {"tokens": [-1]}, {"tokens": [10**9]}):
        path = "/detokenize" if "tokens" in body else "/tokenize"
        yield body_case(f"{path} {str(body)[:40]}", path, body, (200, 400))


def raw_case(name, data, options=(), headers_only=False):
    def run(runner, folder):
        with server(runner, folder, *options) as port:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(data)
                    connection.settimeout(2)
                    connection.recv(4096)
            return healthy(port, folder)
    return Case("server: connections", name, [], run=run)


def connections():
    post_line = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for name, data in {
        "nothing": b"", "a line": b"GET", "binary": bytes(range(256)), "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9,
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/0.9": b"GET /\r\n", "no host": b"GET /health HTTP/1.1\r\n\r\n",
        "a long path": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", "many headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000,
        "a long header": b"GET / HTTP/1.1\r\na: " + b"x" * 1_000_000, "half a body": post_line + b"Content-Length: 100\r\n\r\n{",
        "a negative length": post_line + b"Content-Length: -1\r\n\r\n", "two lengths":
        post_line + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "a huge length":
        post_line + b"Content-Length: 99999999999999\r\n\r\n{}", "a wrong chunk":
        post_line + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "a chunk without end":
        post_line + b"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\n{", "null bytes": b"\0" * 9999,
    }.items():
        yield raw_case(name, data)

    def crowd(count, keep):
        def run(runner, folder):
            with server(runner, folder) as port:
                held = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
                if keep:
                    for connection in held:
                        connection.sendall(b"GET /health HTTP/1.1\r\n")
                wrong = healthy(port, folder)
                for connection in held:
                    connection.close()
                return wrong
        return Case("server: connections", f"{count} connections that {'begin and wait' if keep else 'say nothing'}", [], run=run)
    for count in (10, 200):
        for keep in (True, False):
            yield crowd(count, keep)

    def leaving(count, stream):
        def run(runner, folder):
            with server(runner, folder) as port:
                body = json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": stream}).encode()
                head = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                        % len(body))
                for number in range(count):
                    with socket.create_connection(("127.0.0.1", port)) as connection:
                        connection.sendall(head + body)
                        time.sleep(0.01 * (number % 4))
                return healthy(port, folder)
        return Case("server: connections", f"{count} clients that leave {'a stream' if stream else 'an answer'}", [], run=run)
    for count in (1, 8, 60):
        for stream in (True, False):
            yield leaving(count, stream)

    def slow(runner, folder):
        with server(runner, folder) as port:
            body = json.dumps({"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                connection.sendall(head % len(body) + body)
                for _ in range(20):
                    connection.recv(8)
                    time.sleep(0.05)
                status, answer = post(port, "/v1/completions", {"prompt": "Once", "max_tokens": 2})
                if status != 200:
                    return f"another client: {status} {answer[:200]}"
            return healthy(port, folder)
    yield Case("server: connections", "a client that reads slowly", [], run=slow)

    def full(runner, folder):
        with server(runner, folder, "--parallel", "1", "--queue", "1") as port:
            statuses = []
            body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True}
            threads = [threading.Thread(target=lambda: statuses.append(post(port, "/v1/completions", body)[0])) for _ in range(12)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            if set(statuses) != {200, 429}:
                return f"{statuses}"
            return healthy(port, folder)
    yield Case("server: connections", "a full queue", [], run=full)

    def keys(header):
        def run(runner, folder):
            with server(runner, folder, "--api-key", "secret") as port:
                status, _ = post(port, "/v1/completions", {"prompt": "a", "max_tokens": 1}, header)
                expected = 200 if header.get("Authorization") == "Bearer secret" else 401
                return None if status == expected else f"status {status}"
        return Case("server: connections", f"keys: {header}", [], run=run)
    for header in ({}, {"Authorization": "secret"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer x"},
                   {"Authorization": "Bearer secret"}, {"Authorization": "Basic c2VjcmV0"}, {"Authorization": "Bearer secretsecret"}):
        yield keys(header)

    def busy_port(runner, folder):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            argv = runner.command(["serve", "--port", str(taken.getsockname()[1])], folder)
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
            return None if done.returncode == 1 and "cannot listen" in done.stderr else f"{done.returncode} {done.stderr}"
    yield Case("server: connections", "a port in use", [], run=busy_port)


# Parts of a request whose keys are the client's own: null is a value there.
OWN_KEYS = {"parameters", "input_schema", "schema", "json_schema", "guided_json", "json", "logit_bias", "chat_template_kwargs", "input"}


def nulls(path, body):
    """A field that is null is as good as one that is absent."""
    def run(runner, folder):
        with server(runner, folder, "--served-model-name", "forerun") as port:
            for *above, field in edits.places(body):
                if not isinstance(field, str) or OWN_KEYS.intersection(above):
                    continue
                present, absent = copy.deepcopy(body), copy.deepcopy(body)
                for holder, change in ((present, lambda one: one.update({field: None})), (absent, lambda one: one.pop(field))):
                    for key in above:
                        holder = holder[key]
                    change(holder)
                statuses = [post(port, path, one)[0] for one in (present, absent)]
                if statuses[0] != statuses[1]:
                    return f"{[*above, field]}: status {statuses[0]} if it is null, {statuses[1]} if it is absent"
            return healthy(port, folder)
    return Case("server: requests", f"nulls in {path} {json.dumps(body)[:60]}", [], run=run)


def number(value):
    """A number of a schema is the number of the answer, or refused."""
    def run(runner, folder):
        with server(runner, folder) as port:
            for schema in ({"const": value}, {"enum": [value]}, {"const": {"a": [value]}}, {"type": "integer", "minimum": value, "maximum": value},
                           {"type": "array", "items": {"const": value}, "minItems": 1, "maxItems": 1}):
                status, answer = post(port, "/v1/completions", {"prompt": "x", "max_tokens": 80, "json_schema": schema})
                if status == 200:
                    text = json.loads(answer)["choices"][0]["text"]
                    if str(value) not in text:
                        return f"{schema}: {text}"
                elif status != 400 or str(value) not in json.loads(answer)["error"]["message"]:
                    return f"{schema}: status {status}: {answer[:300]}"
            return healthy(port, folder)
    return Case("server: requests", f"the number {value}", [], run=run)


def multiples():
    """A schema that takes long to compile is refused or answered in time, and other clients do not wait for it."""
    def run(runner, folder):
        with server(runner, folder, "--request-seconds", "20") as port:
            for step in (86_400_000, 123_456_789, 2**31, 2**31 + 11, 10**12 + 39, 2**53 - 111, 2**63 - 25, 0.0001, 1e-9, 1e300):
                for kind in ("integer", "number"):
                    body = {"prompt": "x", "max_tokens": 30, "json_schema": {"type": kind, "multipleOf": step}}
                    status, answer = post(port, "/v1/completions", body)
                    if status not in (200, 400):
                        return f"{kind}, {step}: status {status}: {answer[:300]}"
            return healthy(port, folder)
    return Case("server: requests", "multiples of many numbers", [], run=run)


def requests():
    for path, body in edits.VALID:
        yield nulls(path, body)
    for edge in (2**53, 2**63, 2**64):
        for value in (edge - 1, edge, edge + 1, 1 - edge, -edge, -edge - 1, 511 - edge, 513 - edge):
            yield number(value)
    yield multiples()


def cases():
    yield from bodies()
    yield from connections()
    yield from requests()
