#!/usr/bin/env python3
"""Compares guesses of the next verdict: a drafter's ranks (SSD, SpecBranch) and the target's early exits (Mirror-SD).

Prints how often the target's token is among the best of either, and the speed over plain decoding of rounds replayed over
greedy answers: a pass of the target takes 1, further rows nothing. Exits after a rejected token only compete for places;
those of the answer stand for them. PROMPTS has a prompt on each line, or it is a JSON file of golden tokens. DRAFTER is a
Llama checkpoint, or EAGLE with a draft vocabulary, which reads the target's features at every position.

usage: branches.py TARGET DRAFTER PROMPTS TOKENS (packages: torch transformers gguf accelerate)
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaModel

WIDTH, VERDICTS, LENGTHS = 16, 8, (1, 2, 3, 4, 6, 8, 10)
COSTS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
STOPS = (0, 0.3, 0.5)  # a draft ends at a token of which the drafter is less sure


def load(path):
    path = pathlib.Path(path)
    gguf = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    return AutoModelForCausalLM.from_pretrained(path.parent if gguf else path, dtype=torch.float32, **gguf)


def drafter(folder, target):
    """Returns a function from a text's tokens and features to the drafter's logits after each token."""
    if "speculator" not in json.loads(pathlib.Path(folder, "config.json").read_text()):
        model = load(folder)
        return lambda ids, _: model(ids[None]).logits[0]
    weights = {name: tensor.float() for name, tensor in load_file(f"{folder}/model.safetensors").items()}
    tokens = weights.pop("d2t").long() + torch.arange(len(target.lm_head.weight))[: LlamaConfig.from_pretrained(folder).draft_vocab_size]
    join, bias = weights.pop("fc.weight"), weights.pop("fc.bias")
    model = LlamaModel(LlamaConfig.from_pretrained(folder))
    model.load_state_dict(weights, strict=False)
    model.norm = torch.nn.Identity()

    def logits(ids, features):
        before = torch.cat([torch.zeros_like(features[:1]), features[:-1]])
        inputs = torch.cat([target.get_input_embeddings()(ids), before], -1) @ join.T + bias
        hidden = model(inputs_embeds=inputs[None]).last_hidden_state[0]
        return torch.full((len(ids), len(target.lm_head.weight)), -1e9).index_copy(1, tokens, hidden @ target.lm_head.weight[tokens].T)

    return logits


def read(path, target, tokens):
    """Returns the tokens of each prompt, and of its greedy answer."""
    text = pathlib.Path(path).read_text()
    if path.endswith(".json"):
        return [(prompt["prompt_ids"], prompt["generated_ids"]) for prompt in json.loads(text)["prompts"]]
    tokenizer = Tokenizer.from_file(f"{sys.argv[1]}/tokenizer.json")
    prompts = [tokenizer.encode(line).ids for line in text.splitlines()]
    answers = [target.generate(torch.tensor([it]), max_new_tokens=tokens, do_sample=False)[0, len(it) :].tolist() for it in prompts]
    return [(prompt, answer if len(answer) == tokens else answer[:-1]) for prompt, answer in zip(prompts, answers)]


def best(logits):
    values, tokens = logits.topk(WIDTH)
    shares = (values - logits.logsumexp(-1, keepdim=True)).exp()
    return [list(zip(*row)) for row in zip(tokens.tolist(), shares.tolist())]


def fit(inputs, outputs):
    """Returns the linear map between states by ridge regression, for states with a one behind them."""
    square = inputs.T @ inputs
    return torch.linalg.solve(square + 0.01 * square.diag().mean() * torch.eye(len(square)), inputs.T @ outputs)


@torch.no_grad()
def measure(target, draft, prompts, tokens):
    """Returns for each answer its tokens, and for each, the best tokens of the drafter and of each early exit.

    An exit is the final norm, a map fitted on every other prompt unless it is "plain", and the head."""
    layers = target.config.num_hidden_layers
    exits = sorted({round(layers * share) for share in (1 / 2, 5 / 8, 3 / 4, 7 / 8)})
    states = []
    for prompt, answer in prompts:
        output = target.model(torch.tensor([prompt + answer[:-1]]), output_hidden_states=True)
        normed = {layer: target.model.norm(output.hidden_states[layer][0]) for layer in exits}
        states.append(({layer: torch.cat([it, torch.ones(len(it), 1)], 1) for layer, it in normed.items()}, output.last_hidden_state[0]))
    maps = []
    for fold in (1, 0):
        others = states[fold::2]
        final = torch.cat([it[1:] for _, it in others])
        maps.append({layer: fit(torch.cat([it[layer][1:] for it, _ in others]), final) for layer in exits})
    for index, ((prompt, answer), (early, final)) in enumerate(zip(prompts, states)):
        answer = answer[:tokens]
        rows = slice(len(prompt) - 1, len(prompt) - 1 + len(answer))
        exact = target.lm_head(final[rows]).argmax(-1).tolist()
        same = next((i for i, pair in enumerate(zip(answer, exact)) if pair[0] != pair[1]), len(answer))
        guesses = {"drafter": best(draft(torch.tensor(prompt + answer[:-1]), final[: rows.stop])[rows])}
        for layer in exits:
            guesses[f"plain {layer / layers:.3f}"] = best(target.lm_head(early[layer][rows, :-1]))
            guesses[layer / layers] = best(target.lm_head(early[layer][rows] @ maps[index % 2][layer]))
        yield answer[:same], guesses


def likely(rows, draft, places):
    """Returns the most probable verdicts: the number of accepted tokens, and the token after them."""
    verdicts, accepted = [], 1.0
    for k, row in enumerate(rows):
        rejected = draft[k] if k < len(draft) else None
        verdicts += [(accepted * share, k, token) for token, share in row if token != rejected]
        accepted *= dict(row).get(rejected, 0.0)
    return {verdict[1:] for verdict in sorted(verdicts, reverse=True)[:places]}


def rounds(texts, longest, stop, branch):
    """Returns each round's text, start, draft and number of accepted tokens. `branch`: the unsure token is not drafted."""
    for answer, guesses in texts:
        start = 0
        while start + longest < len(answer):
            tokens = [row[0] for row in guesses["drafter"][start : start + longest]]
            sure = next((i for i, (_, share) in enumerate(tokens) if share < stop), longest)
            draft = [token for token, _ in tokens[: sure if branch else sure + 1]]
            accepted = next((i for i, token in enumerate(draft) if token != answer[start + i]), len(draft))
            yield answer, guesses, start, draft, accepted
            start += accepted + 1


def replay(texts, source, branch=False, places=VERDICTS):
    """Returns for each cost of a draft pass the best speed over draft lengths and stops, and its share of hits."""
    results = {cost: (0, 0) for cost in COSTS}
    for longest in LENGTHS:
        for stop in STOPS:
            played = []
            for answer, guesses, start, draft, k in rounds(texts, longest, stop, branch):
                rows = guesses[source or "drafter"][start : start + len(draft) + 1]
                if branch:
                    rows = [[]] * len(draft) + rows[-1:]
                hit = source is not None and (k, answer[start + k]) in (
                    {(len(draft), token) for token, _ in rows[-1][:places]} if branch else likely(rows, draft, places))
                played.append((len(draft), k, hit))
            hits = sum(hit for *_, hit in played) / len(played)
            for cost in COSTS:
                time = 0
                for (*_, hit), (length, *_) in zip(played, played[1:] + played[:1]):
                    # A pass more names tokens, or shows that the next one is unsure. An exit names them itself.
                    begin = source if isinstance(source, float) else cost
                    late = (length + (branch and stop > 0)) * cost
                    time += 1 + (min(late, max(0, begin + length * cost - 1)) if hit else late)
                speed = sum(k + 1 for _, k, _ in played) / time
                results[cost] = max(results[cost], (speed, hits))
    return results


target = load(sys.argv[1])
texts = list(measure(target, drafter(sys.argv[2], target), read(sys.argv[3], target, int(sys.argv[4])), int(sys.argv[4])))
sources = list(texts[0][1])
pairs = [(token, {source: [it for it, _ in guesses[source][i]] for source in sources}) for answer, guesses in texts for i, token in enumerate(answer)]
missed = [(token, {source: [it for it in row if it != of["drafter"][0]] for source, row in of.items()}) for token, of in pairs if of["drafter"][0] != token]
print(f"{len(pairs)} tokens, accepted {1 - len(missed) / len(pairs):.3f}; the target's among the best 1, 2, 4, 8; after a wrong draft, without its token:")
for source in sources:
    shares = [[sum(token in of[source][:k] for token, of in group) / len(group) for k in (1, 2, 4, 8)] for group in (pairs, missed)]
    print(source, *(" ".join(f"{share:.3f}" for share in row) for row in shares), sep=" | ")
print("speed (hits) for draft passes of", *COSTS)
methods = [("speculative", None, False), ("SSD", "drafter", False), ("SpecBranch", "drafter", True)]
methods += [(f"Mirror-SD, exit {source:.3f}", source, False) for source in sources if isinstance(source, float)]
for name, source, branch in methods:
    for places in (VERDICTS, 32) if source and not branch else (VERDICTS,):
        print(name, places, *(f"{speed:.2f} ({hits:.2f})" for speed, hits in replay(texts, source, branch, places).values()), sep=" | ", flush=True)
