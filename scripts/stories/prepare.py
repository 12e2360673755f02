"""Makes the training text of the demonstration models from the folder `stories` of the data.

Usage: prepare.py STORIES OUT

STORIES holds `*.txt.gz` files whose documents end with a line `<|endoftext|>`. The script writes OUT/train.jsonl and
OUT/validation.jsonl, one document a line; every twentieth story is for validation. Every second story of the training
text begins with a request for it, in the form of the plain chat template. Classic fairy tales have older English, so only
the shorter ones are used. Files of `forerun distill` may be added with --more; their incomplete texts are left out.
"""

import argparse
import collections
import gzip
import json
import pathlib
import random
import re

# What a request may name: a story is about those that it mentions most often.
SUBJECTS = """airplane alligator ant apple bag ball balloon banana bear bee bell bicycle bike bird boat book bottle box boy bridge brother
bug bunny bus butterfly cake camel candle candy cap car castle cat caterpillar chicken child clock cloud clown coin cookie cow crab
crayon crocodile crow cup deer dinosaur doctor dog doll dolphin donkey dragon dress drum duck eagle egg elephant fairy farm farmer
father feather fire firefly fish flower fly forest fox frog fruit garden ghost gift giraffe girl goat goose grandma grandpa
grape guitar hamster hat hedgehog hen hippo honey horse house ice igloo island jacket jar jellyfish jewel kangaroo key king kite
kitten knight ladder ladybug lake lamb lamp leaf lemon letter lighthouse lion lizard lollipop magic magnet map market mirror mole
monkey monster moon mother mountain mouse mud mushroom music nest nurse ocean octopus orange otter owl paint panda park parrot party
peach peacock pear pencil penguin piano picture pie pig pigeon pilot pirate pizza plane planet plant pond pony potato prince princess
pumpkin puppet puppy puzzle queen rabbit raccoon rain rainbow raven ring river robot rock rocket rooster rose sailor salad sand
sandcastle scarf school sea seal seed shadow shark sheep shell ship shoe sister sky sled snail snake snow snowman soap sock soup
spider spoon squirrel star stick stone storm sun swan sweater swing sword teacher teddy tiger toad tomato tower town toy tractor train
treasure tree trumpet truck tunnel turkey turtle umbrella unicorn vase village violin wagon water whale wheel wind window
witch wizard wolf wood worm yarn zebra zoo""".split()

PEOPLE = "boy brother child father girl grandma grandpa mother sister".split()
REQUESTS = ["Tell me a story about {}.", "Tell me a story about {}", "Write a story about {}.", "Write a short story about {}.",
            "Can you tell me a story about {}?", "I want a story about {}.", "Please write a story for children about {}."]
ANY = ["Tell me a story.", "Tell me a story", "Write a short story.", "Write a story for children.", "Can you tell me a story?"]
LONGEST_FAIRY_TALE = 3_000


def documents(path):
    text = gzip.open(path, "rt", encoding="utf-8").read()
    return [story for story in (clean(part) for part in text.split("<|endoftext|>")) if len(story) > 100]


def clean(text):
    text = text.translate({0x2018: "'", 0x2019: "'", 0x201c: '"', 0x201d: '"', 0x2014: " - ", 0x2013: "-", 0x2026: "...", 0xa0: " "})
    return re.sub(r"\n\s*\n+", "\n\n", text.replace("\r", "")).strip()


def subjects(story):
    """Returns what a story is about: two at most, or a child's name."""
    words = collections.Counter(re.findall(r"[a-z]+", story.lower()))
    count = {word: words[word] + words[word + "s"] for word in SUBJECTS}
    # People are in most stories, so another subject says more.
    rank = lambda word: (word in PEOPLE, -count[word])
    often = sorted((word for word in SUBJECTS if count[word] >= 3), key=rank)
    return often[:2]


def article(word):
    return word if word in ("magic", "music", "mud", "rain", "sand", "snow", "soap", "water", "wood", "yarn", "fire", "ice", "honey") else (
        f"an {word}" if word[0] in "aeiou" and word != "unicorn" else f"a {word}")


def request(story, chance):
    about, name = subjects(story), re.search(r"\b(boy|girl|man|woman|dog|cat|bird|bear|rabbit|fox) (?:named|called) ([A-Z][a-z]+)", story)
    if name and chance.random() < 0.3:
        return chance.choice(REQUESTS).format(f"a {name[1]} named {name[2]}")
    if not about:
        return chance.choice(ANY)
    if len(about) == 2 and chance.random() < 0.3:
        return chance.choice(REQUESTS).format(f"{article(about[0])} and {article(about[1])}")
    return chance.choice(REQUESTS).format(article(about[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--more", type=pathlib.Path, nargs="*", default=[])
    options = parser.parse_args()
    chance, train, validation = random.Random(7), [], []
    for path in sorted(options.stories.glob("*.txt.gz")):
        stories = documents(path)
        if "fairytales" in path.name:
            stories = [story for story in stories if len(story) <= LONGEST_FAIRY_TALE]
        for number, story in enumerate(stories):
            (validation if number % 20 == 19 else train).append(story)
    for path in options.more:
        lines = map(json.loads, path.open())
        train += [clean(line["text"]) for line in lines if line.get("complete", True)]
    chance.shuffle(train)
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "train.jsonl", "w") as out:
        # Every story is there with and without a request.
        for turn in range(2):
            for number, story in enumerate(train):
                text = f"User: {request(story, chance)}\nAssistant: {story}" if number % 2 == turn else story
                out.write(json.dumps({"text": text}) + "\n")
    with open(options.out / "validation.jsonl", "w") as out:
        for story in validation:
            out.write(json.dumps({"text": story}) + "\n")
    print(f"{len(train)} stories, {sum(map(len, train)):,} characters; {len(validation)} for validation")


if __name__ == "__main__":
    main()
