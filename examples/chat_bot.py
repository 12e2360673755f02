#!/usr/bin/env python3
"""A chat bot over the API of `forerun serve`, with Python's standard library alone.

    forerun serve &
    python3 examples/chat_bot.py                      # chat; Ctrl-D ends it
    echo "Tell me a story about a fox." | python3 examples/chat_bot.py

The answers are streamed, and the bot remembers the conversation.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request


def events(response):
    """Yields the JSON objects of a stream of server-sent events. Lines that begin with a colon are comments."""
    for line in response:
        name, _, data = line.decode().strip().partition(": ")
        if name == "data" and data != "[DONE]":
            yield json.loads(data)


class Bot:
    """A conversation with a model behind OpenAI's API."""

    def __init__(self, server, key, max_tokens):
        self.server, self.max_tokens = server.rstrip("/"), max_tokens
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self.messages = []
        self.model = json.load(self.request("/v1/models"))["data"][0]["id"]

    def request(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.server + path, data, self.headers))

    def answer(self, text):
        """Yields the pieces of the answer to a message."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": self.model, "messages": self.messages, "stream": True, "max_tokens": self.max_tokens}
        answer = ""
        try:
            with self.request("/v1/chat/completions", body) as response:
                for event in events(response):
                    for choice in event["choices"]:
                        piece = choice["delta"].get("content") or ""
                        answer += piece
                        yield piece
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": answer})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="http://127.0.0.1:8080")
    parser.add_argument("--key", default="none")
    parser.add_argument("--max-tokens", type=int, default=300)
    options = parser.parse_args()
    try:
        bot = Bot(options.server, options.key, options.max_tokens)
    except OSError as error:
        sys.exit(f"cannot reach {options.server}: {error}; start it with `forerun serve`")
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            text = input(prompt)
        except EOFError:
            return
        if not text.strip():
            continue
        try:
            for piece in bot.answer(text):
                print(piece, end="", flush=True)
            print()
        except KeyboardInterrupt:
            print("\n(stopped)")
        except urllib.error.HTTPError as error:
            print(f"error: {json.load(error)['error']['message']}", file=sys.stderr)


if __name__ == "__main__":
    main()
