"""Prints instructions for short children's stories, one a line, for `forerun distill --chat`.

Usage: prompts.py [--count 30000] [--seed 1] > prompts.txt

As in TinyStories (Eldan and Li, arXiv 2305.07759), each instruction draws words, a character, a place and features of the
story, so that the stories differ.
"""

import argparse
import random

NOUNS = """apple ball bell bird boat book boot bowl box bread bridge broom bucket button cake candle cap carrot castle cave
chair cheese clock cloud coat cookie crown cup door drum egg fence fire fish flag flower garden gate gift glove grass hat
hill honey house jar key kite ladder lake lamp leaf letter map mirror mitten moon mountain mud nest nut ocean onion orange
paint path pearl pencil pie pillow pond pot puddle puzzle rain rainbow river road rock roof rope rug sand scarf seed shell
ship shoe shovel sled snow soap sock song soup spoon star stick stone storm sun swing table tail tent tower toy train tree
truck tunnel umbrella village wagon wall watch well wheel whistle wind window wing wool yard""".split()
VERBS = """ask bake bounce bring build buy call carry catch chase clap clean climb cook count cross cry cut dance dig draw dream
drink drop fall feed fill find fix float fly fold follow forget give grow guess hear help hide hold hop hug hurry jump keep
kick knock laugh learn leave lift listen look lose love make march mix move open pack paint pick plant play pour promise pull
push race reach read rest ride roll run save search shake share shout show sing sit skip sleep slide smell smile sneeze splash
spin stay swim swing taste teach thank throw tie trade try turn visit wait wake walk wash watch wave whisper win wish wonder
work wrap write yawn""".split()
ADJECTIVES = """angry bad big blue brave bright broken busy calm careful clean clever cold colorful cozy curious dark deep
dirty dry empty fast fluffy friendly funny gentle giant glad golden good green grumpy happy heavy hidden honest hungry icy
jolly kind large late lazy light little lonely loud lucky messy missing new nice noisy old orange patient pink playful polite
proud purple quick quiet red round sad scared secret shiny short shy silent silly silver sleepy slow small smart soft sour
special spotted sticky strange strong sweet tall thirsty tidy tiny tired warm weak wet white wild wise wooden yellow young"""
ADJECTIVES = ADJECTIVES.split()
NAMES = """Amy Anna Ben Bella Billy Bob Clara Daisy Dan Ella Emma Eva Finn Grace Hana Henry Ida Jack Jane Jim Joe Kim Kofi Leo
Lily Lina Lucy Luna Maya Max Mia Milo Mina Nina Noah Nora Olga Oscar Pablo Penny Peter Pip Rosa Ruby Sam Sara Sofia Sue Tariq
Theo Tim Tom Vera Will Yuki Zara Zoe""".split()
CHARACTERS = """ant baker bear bee boy bunny cat chicken cow crab crow deer dog dolphin donkey dragon duck duckling elephant
farmer firefly fisherman fox frog ghost giant girl goat goose grandfather grandmother hedgehog horse king kitten knight lamb
lion mole monkey mouse octopus otter owl parrot penguin pig pirate pony prince princess puppy queen rabbit raccoon robot
sailor seal sheep sister snail snake spider squirrel teacher tiger turtle whale witch wizard wolf worm""".split()
PLACES = ["a farm", "the forest", "a small village", "the beach", "a castle", "the park", "a big city", "the school", "a garden",
          "the mountains", "an island", "a quiet street", "the zoo", "a kitchen", "a boat on the sea", "the library", "the market",
          "a snowy field", "a river", "grandmother's house", "a cave", "the moon", "a toy shop", "the playground", "a train"]
ENDINGS = ["has a happy ending", "has a surprising ending", "ends with a lesson about sharing", "ends with a lesson about honesty",
           "ends with two friends saying sorry", "ends with everybody going to bed", "ends with a party",
           "ends with something found again", "has a funny ending", "ends with a lesson about patience", "has a calm ending",
           "ends with a small sad moment that becomes good", "ends with a promise", "ends with a new friend"]
FEATURES = ["has dialogue", "has a problem that is solved by working together", "has a mistake that is repaired", "has a trip",
            "has a game", "has bad weather", "has a secret", "has a birthday", "has something that breaks", "has a clever plan",
            "has a wish", "has a question that nobody can answer at first", "has a contest", "has a meal"]
OPENINGS = ["Write a short story for small children", "Tell me a short story for a child who is four years old",
            "Write a very short story in simple words", "Tell a short bedtime story", "Write a tiny story that a young child understands"]


def article(word):
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def instruction(draw):
    who = article(f"{draw.choice(ADJECTIVES)} {draw.choice(CHARACTERS)}")
    if draw.random() < 0.7:
        who += f" named {draw.choice(NAMES)}"
    if draw.random() < 0.1:
        return f"Tell me a story about {who}."
    text = f"{draw.choice(OPENINGS)} about {who}"
    if draw.random() < 0.5:
        text += f" and {article(draw.choice(CHARACTERS))}"
    if draw.random() < 0.6:
        text += f" in {draw.choice(PLACES)}"
    words = [draw.choice(NOUNS), draw.choice(VERBS), draw.choice(ADJECTIVES)]
    if draw.random() < 0.6:
        text += ". Use the words \"{}\", \"{}\" and \"{}\"".format(*words)
    if draw.random() < 0.5:
        text += f". The story {draw.choice(FEATURES)}"
    return text + f". It {draw.choice(ENDINGS)}. Use only simple words, and no title."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, seen = random.Random(options.seed), set()
    while len(seen) < options.count:
        line = instruction(draw)
        if line not in seen:
            seen.add(line)
            print(line)


if __name__ == "__main__":
    main()
