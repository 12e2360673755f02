"""Puts a server under mixed load for some minutes: answers, streams, slow readers, clients that go away, and nonsense.

Usage: soak.py --binary target/release/forerun [--minutes 10] [--clients 64] [--model MODEL --draft-model MODEL]

The server has a model with two LoRA adapters of random weights, whose prompts are kept in a folder, and the drafter as
a second model, for which the memory is not enough at the same time as for a third one. After an eighth of the time it
is killed, and starts again with the same folder.

Reports the memory over time, what clients got, and the longest wait. Then equal requests of all clients at once show
whether the server is fair. It fails if a status is not the expected one, an answer differs from the same request alone,
a request takes over two minutes, the log has a panic or a page that cannot be read, no page was read after the kill,
answers are left over, or memory grows by more than 10 % after the first quarter.
"""

import argparse
import collections
import http.client
import json
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

LONGEST = 120
CACHE_BYTES = 64 << 20
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
        prompt = " ".join(drawn.choice(WORDS) for _ in range(drawn.choice([10, 120, 200])))
        body = {"model": drawn.choice(["first"] * 4 + ["adapter-1", "adapter-2", "second", "third"]), "prompt": prompt,
                "max_tokens": drawn.randint(1, 120), "seed": seed, "ignore_eos": True,
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
        self.ended, self.restarts, self.lock = threading.Event(), threading.Event(), threading.Lock()
        self.expected = [(body, text_of(port, body)[1]) for body in cases(1)]

    def client(self, number):
        drawn = random.Random(number)
        kinds = [("answer", self.answer)] * 6 + [("stream", self.stream)] * 3 + [
            ("goes away", self.goes_away), ("slow reader", self.slow_reader), ("too large", self.too_large),
            ("malformed", self.malformed), ("half a request", self.half)]
        while not self.ended.is_set():
            if self.restarts.is_set():
                time.sleep(0.1)
                continue
            kind, run = drawn.choice(kinds)
            began = time.monotonic()
            try:
                wrong = run(drawn)
            except Exception as error:
                wrong = repr(error)
            if wrong and self.restarts.is_set():
                continue
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
        text, response = "", connection.getresponse()
        if response.status != 200:
            return f"{response.status} {response.read()!r} instead of {expected!r}"
        for line in response:
            if line.startswith(b"data: {"):
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
            time.sleep(pause)
        connection.close()
        return None if text == expected else f"{text!r} instead of {expected!r}"

    def slow_reader(self, drawn):
        return self.stream(drawn, 0.02)

    def goes_away(self, drawn):
        body = json.dumps({**drawn.choice(self.expected)[0], "stream": True, "max_tokens": 200}).encode()
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
        text_of(port, {"model": "first", "prompt": "Once upon a time", "max_tokens": 100, "temperature": 0,
                       "ignore_eos": True})
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
    parser.add_argument("--model", default="models/target")
    parser.add_argument("--draft-model", default="models/drafter")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options, pathlib.Path(folder))
        try:
            return soak(server, options)
        finally:
            server.process.kill()


class Server:
    """A server with a model and its adapters, and two further models, of which one is loaded at a time."""

    def __init__(self, options, folder):
        self.log, models = folder / "log", folder / "models.toml"
        for seed in (1, 2):
            make_adapter(pathlib.Path(options.model), folder / f"adapter-{seed}", seed)
        weights = [(pathlib.Path(path) / "model.safetensors").stat().st_size
                   for path in (options.model, options.draft_model)]
        # A model and its cache, its drafter and that one's cache, and one further model.
        budget = sum(weights) + weights[1] + 4 * CACHE_BYTES
        cache = f"cache-bytes = {CACHE_BYTES}\ncache-dir = {str(folder / 'cache')!r}\n"
        further = "".join(f"[[model]]\nname = '{name}'\npath = '{options.draft_model}'\n"
                          f"drafter = 'prompt-lookup'\nkeep-alive = '2s'\n{cache}"
                          for name in ("second", "third"))
        models.write_text(f"memory-budget = {budget}\n[[model]]\nname = 'first'\npath = '{options.model}'\n"
                          f"draft-model = '{options.draft_model}'\npreload = true\n{cache}"
                          f"lora = ['adapter-1={folder}/adapter-1', 'adapter-2={folder}/adapter-2']\n{further}")
        self.argv = [options.binary, "serve", "--port", "0", "--models", str(models),
                     "--parallel", str(options.clients), "--queue", str(options.clients)]
        self.start()

    def start(self):
        """Starts the server, and returns its port once it is ready."""
        self.process = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=self.log.open("a"), text=True)
        self.port = int(re.search(r":(\d+)\s*$", self.process.stdout.readline()).group(1))
        while request(self.port, "GET", "/health")[0] != 200:
            time.sleep(0.1)

    def metric(self, name):
        """Returns the sum of a metric over all models."""
        text = request(self.port, "GET", "/metrics")[1].decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))


def make_adapter(model, folder, seed):
    """Writes a LoRA adapter of random weights for a model's queries and values, as PEFT does."""
    config = json.loads((model / "config.json").read_text())
    drawn, rank, hidden = random.Random(seed), 4, config["hidden_size"]
    sizes = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    tensors, data = {}, b""
    for layer in range(config["num_hidden_layers"]):
        for name, heads in sizes.items():
            for part, shape in (("A", [rank, hidden]), ("B", [heads * config["head_dim"], rank])):
                values = [drawn.gauss(0, 0.1) for _ in range(shape[0] * shape[1])]
                end = len(data) + 4 * len(values)
                tensors[f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), end]}
                data += struct.pack(f"<{len(values)}f", *values)
    header = json.dumps(tensors).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(sizes)}))


def soak(server, options):
    soak = Soak(server.port)
    threads = [threading.Thread(target=soak.client, args=(number,)) for number in range(options.clients)]
    [thread.start() for thread in threads]
    time.sleep(60 * options.minutes / 8)
    soak.restarts.set()
    server.process.kill()
    server.process.wait()
    server.start()
    soak.port = server.port
    repeated = next(body for body, _ in soak.expected if body["model"] == "first" and len(body["prompt"]) > 400)
    text_of(server.port, {**repeated, "max_tokens": 1})
    was_read = server.metric("vllm:prefix_cache_hits_total")
    # What clients waited for is over.
    time.sleep(1)
    soak.restarts.clear()
    began, megabytes = time.monotonic(), []
    while time.monotonic() - began < 60 * options.minutes * 7 / 8 and server.process.poll() is None:
        time.sleep(5)
        megabytes.append(memory(server.process))
    soak.ended.set()
    [thread.join() for thread in threads]
    if server.process.poll() is not None:
        print(f"the server ended with {server.process.returncode}: {server.log.read_text()[-2000:]}")
        return 1
    deadline = time.monotonic() + 30
    while (running := server.metric("vllm:num_requests_running")) and time.monotonic() < deadline:
        time.sleep(0.2)
    ratio = fairness(server.port, options.clients)
    quarters = [max(megabytes[len(megabytes) * part // 4:len(megabytes) * (part + 1) // 4] or [0]) for part in range(4)]
    print(f"requests: {dict(soak.counts)}, {sum(soak.counts.values())} in all")
    print("largest memory by quarter, MB:", ", ".join(f"{value:.0f}" for value in quarters))
    print(f"longest wait for an answer: {soak.longest:.1f} s; slowest to fastest of equal requests: {ratio:.2f}")
    for failure in soak.failures[:10]:
        print("failure:", failure, file=sys.stderr)
    log = server.log.read_text()
    troubles = [words for words, is_so in (
        ("a panic", "panicked" in log), ("a broken page", "page" in log), ("answers left over", running),
        ("no page was found after the kill", not was_read)) if is_so]
    failed = bool(soak.failures or troubles) or soak.longest > LONGEST or quarters[3] > 1.1 * quarters[0]
    print(", ".join([f"{len(soak.failures)} failures", *troubles]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
