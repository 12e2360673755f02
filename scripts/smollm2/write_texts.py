#!/usr/bin/env python3
"""Lets SmolLM2 write conversations, to train drafters for it, through a running `forerun serve`.

usage: write_texts.py --data FOLDER --out FILE.jsonl [--count N] [--url URL] [--parallel N]

Half of the answers are greedy; the others are sampled, at temperatures 0.7 and 1. The messages are

- problems of GSM8K and MBPP in FOLDER/prompts, without those of Spec-Bench, which measures the drafters later;
- tasks about passages of FOLDER/corpus and FOLDER/stories: summarise, continue, ask, rewrite;
- messages that the model invents, by continuing its chat template (Magpie, arXiv 2406.08464).

Every line of the output holds a whole conversation as `text`, with the markers of the chat template. A message and its
answer depend only on the line's number. The script continues an existing file.
"""

import argparse
import concurrent.futures
import gzip
import itertools
import json
import pathlib
import random
import threading
import urllib.request

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER = "<|im_start|>user\n"
ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"
TASKS = [
    "Summarize this text in a few sentences:\n\n{}",
    "Continue this story:\n\n{}",
    "Rewrite this passage in simple modern English:\n\n{}",
    "What is happening in this passage, and who is in it?\n\n{}",
    "Write three questions about this text and answer them.\n\n{}",
    "Give this text a title and explain your choice.\n\n{}",
]
# Of eight messages, so many are invented, are problems, and are tasks about passages.
INVENTED, PROBLEMS = 5, 2
TEMPERATURES = [0, 0.7, 0, 1]


def problems(folder):
    """Returns problems of GSM8K and MBPP that are not part of Spec-Bench."""
    lines = lambda name: map(json.loads, (folder / name).read_text().splitlines())
    spec_bench = {turn.strip() for line in lines("spec_bench_question.jsonl") for turn in line["turns"]}
    all = [line["question"] for line in lines("gsm8k_test.jsonl")] + [line["text"] for line in lines("mbpp.jsonl")]
    return [problem for problem in all if problem.strip() not in spec_bench]


def passages(folder):
    """Returns passages of 300 to 1200 characters of books and stories."""
    found = []
    for name in ["corpus/books-train-00.txt.gz", "corpus/books-train-03.txt.gz", "stories/tinystories-subset.txt.gz"]:
        with gzip.open(folder / name, "rt") as file:
            paragraphs = [" ".join(part.split()) for part in file.read(12_000_000).split("\n\n")]
        found += [part for part in paragraphs if 300 <= len(part) <= 1200]
    return found


class Writer:
    """Writes conversations by number."""

    def __init__(self, url, data, tokens):
        self.url, self.tokens = url, tokens
        self.problems, self.passages = problems(data / "prompts"), passages(data)
        random.Random(1).shuffle(self.problems)

    def complete(self, prompt, temperature, seed, max_tokens):
        """Returns what the model adds to a text, and whether it ended by itself."""
        body = {"prompt": prompt, "temperature": temperature, "seed": seed, "max_tokens": max_tokens}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=3600) as response:
            choice = json.load(response)["choices"][0]
        return choice["text"], choice["finish_reason"] == "stop"

    def message(self, number):
        """Returns the kind of a message, and the message."""
        group, place = divmod(number, 8)
        problem = group * PROBLEMS + place - INVENTED
        if INVENTED <= place < INVENTED + PROBLEMS and problem < len(self.problems):
            return "problem", self.problems[problem]
        if place >= INVENTED + PROBLEMS:
            generator = random.Random(number)
            return "passage", generator.choice(TASKS).format(generator.choice(self.passages))
        for attempt in itertools.count():
            text, ended = self.complete(SYSTEM + USER, 1, number + attempt * 1_000_000, 200)
            if ended and text.strip() and "<|im_start|>" not in text:
                return "invented", text.strip()

    def conversation(self, number):
        """Returns one conversation as a line of the output."""
        kind, message = self.message(number)
        temperature = TEMPERATURES[number // 8 % len(TEMPERATURES)]
        start = SYSTEM + USER + message + ASSISTANT
        answer, ended = self.complete(start, temperature, number, self.tokens)
        return {"number": number, "kind": kind, "temperature": temperature, "ended": ended, "text": start + answer}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--count", type=int, default=8000, help="number of conversations [default: 8000]")
    parser.add_argument("--tokens", type=int, default=400, help="largest length of an answer [default: 400]")
    parser.add_argument("--parallel", type=int, default=16, help="conversations at the same time [default: 16]")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    arguments = parser.parse_args()
    done = set()
    if arguments.out.exists():
        text = arguments.out.read_text()
        complete = text[: text.rfind("\n") + 1]
        if complete != text:
            # An interrupted run left a part of a line.
            arguments.out.write_text(complete)
        done = {json.loads(line)["number"] for line in complete.splitlines()}
    writer, lock = Writer(arguments.url, arguments.data, arguments.tokens), threading.Lock()
    with arguments.out.open("a") as out, concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:

        def write(number):
            line = json.dumps(writer.conversation(number))
            with lock:
                out.write(line + "\n")
                out.flush()

        for _ in pool.map(write, (number for number in range(arguments.count) if number not in done)):
            pass


if __name__ == "__main__":
    main()
