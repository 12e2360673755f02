#!/usr/bin/env python3
"""Writes the training text of the demonstration models from short stories.

    models/texts.py STORIES OUT [EXTRA.jsonl ...]

STORIES holds text files (.txt.gz) whose documents end with a line `<|endoftext|>`. EXTRA holds more stories in
fields `text`. The script writes OUT/train.jsonl and OUT/validation.jsonl; every twentieth story is held out.

Stories are kept if they are short enough for the models' context, end with the end of a sentence, have no markup and
do not repeat themselves. Half of them start with a request, such as "Tell me a story about a fox.", so that the
models can answer one.
"""

import collections
import gzip
import json
import pathlib
import random
import re
import sys

# Characters of the shortest and of the longest story. The longest is about 512 tokens.
SHORTEST, LONGEST = 250, 2_300
PLAIN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "…": "...", "—": " - ", "–": "-", "\u00a0": " "})
REQUESTS = ["Tell me a story about {}.", "Tell me a story about {}", "Write a story about {}.", "A story about {}, please."]


def clean(text):
    """The story with plain quotes and spaces, or None if it is not a whole, plain story."""
    text = text.translate(PLAIN)
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r" *\n *", "\n", text)
    text = re.sub(r"\n\n+", "\n\n", text).strip()
    if not SHORTEST <= len(text) <= LONGEST or not text.isascii():
        return None
    if not re.search(r"[.!?][\"']?$", text) or re.search(r"[<>*#_\[\]{}|\\]|https?:", text):
        return None
    words = text.split()
    fours = list(zip(words, words[1:], words[2:], words[3:]))
    if len(set(fours)) < 0.8 * len(fours):
        return None
    return text


def read_stories(folder):
    for path in sorted(pathlib.Path(folder).glob("*.txt.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from file.read().split("<|endoftext|>")


def read_extra(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["text"]


NOUN = re.compile(r"\b(?:an?|the) ((?:(?:little|big|old|small|brave|wise|young|clever|kind) )?[a-z]{3,})\b")


def subjects(stories):
    """For each story, what it is about: the noun that is frequent in it and rare in the others, or a name."""
    found = [collections.Counter(match.split()[-1] for match in NOUN.findall(story)) for story in stories]
    documents = collections.Counter(noun for nouns in found for noun in nouns)
    for story, nouns in zip(stories, found):
        often = {noun: count for noun, count in nouns.items() if count >= 3 and documents[noun] >= 8}
        name = re.search(r"\bnamed ([A-Z][a-z]+)\b", story)
        if often:
            noun = max(sorted(often), key=lambda noun: often[noun] ** 2 / documents[noun] ** 0.5)
            yield f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
        elif name:
            yield name.group(1)
        else:
            yield None


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    kept = []
    seen = set()
    texts = [*read_stories(sys.argv[1]), *read_extra(sys.argv[3:])]
    for text in texts:
        story = clean(text)
        # Stories with the same beginning are copies of each other.
        if story and story[:120] not in seen:
            seen.add(story[:120])
            kept.append(story)
    generator = random.Random(0)
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    counts = collections.Counter()
    with open(out / "train.jsonl", "w") as train, open(out / "validation.jsonl", "w") as validation:
        for number, (story, subject) in enumerate(zip(kept, subjects(kept))):
            text = story
            if subject and generator.random() < 0.6:
                text = generator.choice(REQUESTS).format(subject) + "\n\n" + story
                counts["with a request"] += 1
            held_out = number % 20 == 19
            print(json.dumps({"text": text}), file=validation if held_out else train)
            counts["held out" if held_out else "for training"] += 1
    print(f"{len(texts)} stories read, {len(kept)} kept:", ", ".join(f"{n} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
