#!/usr/bin/env python3
"""Lets SmolLM2 write conversations, to train drafters for it, through a running `forerun serve`.

usage: write_texts.py --data FOLDER --out FILE.jsonl [--mix MIX] [--first N] [--count N] [--url URL] [--parallel N]

Half of the answers are greedy; the others are sampled, at temperatures 0.7 and 1. With `--mix chat`, the messages are

- problems of GSM8K and MBPP in FOLDER/prompts, without those of Spec-Bench, which measures the drafters later;
- tasks about passages of FOLDER/corpus and FOLDER/stories: summarise, continue, ask, rewrite;
- messages that the model invents, by continuing its chat template (Magpie, arXiv 2406.08464).

With `--mix tasks`, they are of the kinds of Spec-Bench: summaries of longer passages, questions about passages, short
questions, sentences to translate, problems, and invented messages. The model invents the questions.

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
import re
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
# The kinds of eight messages after each other, for each mix.
MIXES = {
    "chat": ["invented"] * 5 + ["problem"] * 2 + ["passage"],
    "tasks": ["summary", "lookup", "question", "translation", "question", "problem", "invented", "summary"],
}
STARTS = "who|who wrote|who played|what is|what is the|what does|when was|when did|where is|where was|how many|how long|which|why do"
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


def long_passages(passages):
    """Returns passages of 1200 to 3500 characters: a few after each other."""
    found, current = [], ""
    for passage in passages:
        current = f"{current}\n\n{passage}" if current else passage
        if len(current) >= 1200:
            found += [current] if len(current) <= 3500 else []
            current = ""
    return found


def sentences(folder):
    """Returns German sentences, of the problems of MGSM."""
    problems = [line.split("\t")[0] for line in (folder / "mgsm/mgsm_de.tsv").read_text().splitlines()]
    return [part.strip() for problem in problems for part in re.split(r"(?<=[.?!]) ", problem) if len(part) >= 20]


class Writer:
    """Writes conversations by number."""

    def __init__(self, url, data, mix, tokens):
        self.url, self.mix, self.tokens = url, MIXES[mix], tokens
        self.problems, self.passages = problems(data / "prompts"), passages(data)
        self.long_passages, self.sentences = long_passages(self.passages), sentences(data / "prompts")
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

    def invent(self, start, number, end):
        """Returns how the model goes on after a start of a message, up to `end`; `None` ends with the message."""
        for attempt in itertools.count():
            text, found = self.complete(SYSTEM + USER + start, 1, number + attempt * 1_000_000, 40 if end else 200)
            if end:
                text, found, _ = text.partition(end)
                found = found and "\n" not in text
            if found and text.strip() and "<|im_start|>" not in text:
                return (start + text).strip() + (end or "")

    def message(self, number):
        """Returns the kind of a message, and the message."""
        group, place = divmod(number, len(self.mix))
        kind, generator = self.mix[place], random.Random(number)
        if kind == "problem":
            problem = group * self.mix.count(kind) + self.mix[:place].count(kind)
            if problem < len(self.problems):
                return kind, self.problems[problem]
            kind = "invented"
        match kind:
            case "passage":
                return kind, generator.choice(TASKS).format(generator.choice(self.passages))
            case "summary":
                return kind, "Summarize: " + generator.choice(self.long_passages)
            case "translation":
                return kind, "Translate German to English: " + generator.choice(self.sentences)
            case "question":
                return kind, self.invent(generator.choice(STARTS.split("|")), number, "?")
            case "lookup":
                passage, start = generator.choice(self.long_passages), generator.choice(STARTS.split("|"))
                return kind, self.invent(f"{passage}\n\n{start}", number, "?")
        return kind, self.invent("", number, None)

    def conversation(self, number):
        """Returns one conversation as a line of the output."""
        kind, message = self.message(number)
        temperature = TEMPERATURES[number // len(self.mix) % len(TEMPERATURES)]
        start = SYSTEM + USER + message + ASSISTANT
        answer, ended = self.complete(start, temperature, number, self.tokens)
        return {"number": number, "kind": kind, "temperature": temperature, "ended": ended, "text": start + answer}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--mix", choices=MIXES, default="chat", help="kinds of messages [default: chat]")
    parser.add_argument("--first", type=int, default=0, help="number of the first conversation [default: 0]")
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
    writer, lock = Writer(arguments.url, arguments.data, arguments.mix, arguments.tokens), threading.Lock()
    numbers = range(arguments.first, arguments.first + arguments.count)
    with arguments.out.open("a") as out, concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:

        def write(number):
            line = json.dumps(writer.conversation(number))
            with lock:
                out.write(line + "\n")
                out.flush()

        for _ in pool.map(write, (number for number in numbers if number not in done)):
            pass


if __name__ == "__main__":
    main()
