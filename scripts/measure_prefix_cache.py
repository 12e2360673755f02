#!/usr/bin/env python3
"""Measures the time to the first token of two turns of a long conversation, against a running `forerun serve`.

The second turn sends the first one's messages and answer again, so a cache of prefixes has to compute only the new message.

With --restart, the server is started here, and the first turn is sent again after it was killed and started again, so that a
cache on disk has to read it.

usage: measure_prefix_cache.py URL [--tokens 4096] [--repeats 3] [--restart "forerun serve MODEL --cache-dir DIR"]
"""

import argparse
import json
import shlex
import subprocess
import time
import urllib.request


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=600)


def turn(url, messages):
    """Returns the seconds to the first piece of the answer, the answer, and the usage."""
    body = {"messages": messages, "max_tokens": 16, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    began, first, text, usage = time.monotonic(), None, "", None
    with post(url, "/v1/chat/completions", body) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if piece and first is None:
                first = time.monotonic() - began
            text += piece
    return first, text, usage


def long_message(url, number, tokens):
    """Returns a text of about this many tokens, different for each number."""
    words = f"Conversation {number}. " + " ".join(f"Item {item} costs {item * 7 % 91} coins." for item in range(tokens // 4))
    with post(url, "/tokenize", {"content": words}) as response:
        count = len(json.load(response)["tokens"])
    return words[: len(words) * tokens // count]


def start(command, url):
    """Starts a server, and waits until it answers."""
    server = subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            urllib.request.urlopen(url + "/health").close()
            return server
        except OSError:
            if server.poll() is not None:
                raise SystemExit(f"{command}: ended with {server.returncode}") from None
            time.sleep(0.1)


def measure_restarts(url, command, tokens, repeats):
    """Prints the time to the first token of a prompt that is computed, and of the same one after a restart."""
    print("| prompt tokens | computed, ms | cached tokens | after a restart, ms | ratio |\n|---:|---:|---:|---:|---:|")
    for number in range(repeats):
        turns = []
        for _ in range(2):
            server = start(command, url)
            turn(url, [{"role": "user", "content": "Hello!"}])
            system = {"role": "system", "content": long_message(url, number, tokens)}
            turns.append(turn(url, [system, {"role": "user", "content": "What is cheapest?"}]))
            time.sleep(2)
            server.kill()
            server.wait()
        (first, text, usage), (second, again, restored) = turns
        assert text == again, f"{text!r}, then {again!r}"
        cached = restored["prompt_tokens_details"]["cached_tokens"]
        print(f"| {usage['prompt_tokens']} | {first * 1e3:.0f} | {cached} | {second * 1e3:.0f} | {first / second:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--restart", metavar="COMMAND")
    arguments = parser.parse_args()
    if arguments.restart:
        return measure_restarts(arguments.url, arguments.restart, arguments.tokens, arguments.repeats)
    print("| prompt tokens | first turn, ms | cached tokens | second turn, ms | ratio |\n|---:|---:|---:|---:|---:|")
    for number in range(arguments.repeats):
        messages = [{"role": "user", "content": long_message(arguments.url, number, arguments.tokens) + " What is cheapest?"}]
        first, text, usage = turn(arguments.url, messages)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And what is dearest?"}]
        second, _, again = turn(arguments.url, messages)
        cached = again.get("prompt_tokens_details", {}).get("cached_tokens")
        print(f"| {usage['prompt_tokens']} | {first * 1e3:.0f} | {cached} | {second * 1e3:.0f} | {second / first:.3f} |")


if __name__ == "__main__":
    main()
