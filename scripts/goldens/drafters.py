"""What the scripts that make random drafters share: a random target, a Llama,
the pieces of a forward pass, and the choice of seeds.

Everything is plain numpy in float64, and shares no code with forerun or
another engine.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
from safetensors.numpy import save_file

# The lengths of the prompts in tokens.
PROMPT_SIZES = [1, 4, 9, 23]

# The smallest gap between the two largest logits of any step. float32
# arithmetic in another order changes a logit by about 1e-5.
MARGIN = 2e-3

# The last seed to try. Seeds are tried in order until no draft has a near tie,
# and every option matters.
LAST_SEED = 200

# The smallest difference between confidences that counts as one.
CONFIDENCE_DIFFERENCE = 0.01

EPSILON = 1e-5

TARGET = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 28,
    "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 67,
    "max_position_embeddings": 256, "rms_norm_eps": EPSILON,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16",
}


# ---------------------------------------------------------------------------
# Pieces of a forward pass. Rows are [tokens, width].

def norm(x, weight):
    mean = numpy.mean(x * x, axis=-1, keepdims=True)
    return x / numpy.sqrt(mean + EPSILON) * weight


def rotated(heads, positions, config):
    """Rotates [tokens, heads, head_dim] by RoPE: pairs (i, i + head_dim/2)."""
    rope = config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    half = config["head_dim"] // 2
    frequencies = theta ** -(numpy.arange(half) / half) / rope.get(
        "factor", 1.0)
    angles = numpy.asarray(positions)[:, None, None] * frequencies
    cosine, sine = numpy.cos(angles), numpy.sin(angles)
    first, second = heads[..., :half], heads[..., half:]
    return numpy.concatenate(
        [first * cosine - second * sine, second * cosine + first * sine], -1)


def attention(x, tensors, prefix, config, positions):
    """Causal attention over rows `x`, with its output projection."""
    dim = config["head_dim"]

    def projected(name):
        rows = x @ tensors[f"{prefix}self_attn.{name}_proj.weight"].T
        bias = tensors.get(f"{prefix}self_attn.{name}_proj.bias", 0.0)
        return (rows + bias).reshape(len(x), -1, dim)

    queries, keys, values = (projected(name) for name in "qkv")
    if config["model_type"] == "qwen3":
        queries = norm(queries, tensors[f"{prefix}self_attn.q_norm.weight"])
        keys = norm(keys, tensors[f"{prefix}self_attn.k_norm.weight"])
    queries = rotated(queries, positions, config)
    keys = rotated(keys, positions, config)
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    keys, values = (numpy.repeat(rows, group, 1) for rows in (keys, values))
    scores = numpy.einsum("qhd,khd->hqk", queries, keys) / numpy.sqrt(dim)
    scores[:, ~numpy.tri(len(x), dtype=bool)] = -numpy.inf
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = numpy.einsum("hqk,khd->qhd", weights, values).reshape(len(x), -1)
    bias = tensors.get(f"{prefix}self_attn.o_proj.bias", 0.0)
    return mixed @ tensors[f"{prefix}self_attn.o_proj.weight"].T + bias


def mlp(x, tensors, prefix):
    x = norm(x, tensors[f"{prefix}post_attention_layernorm.weight"])
    gate = x @ tensors[f"{prefix}mlp.gate_proj.weight"].T
    up = x @ tensors[f"{prefix}mlp.up_proj.weight"].T
    return (gate / (1 + numpy.exp(-gate)) * up) @ tensors[
        f"{prefix}mlp.down_proj.weight"].T


def ordinary_layer(hidden, tensors, prefix, config, positions):
    x = norm(hidden, tensors[f"{prefix}input_layernorm.weight"])
    hidden = hidden + attention(x, tensors, prefix, config, positions)
    return hidden + mlp(hidden, tensors, prefix)


def target_states(tensors, tokens):
    """Returns the residual stream before the first layer and after each layer,
    and the last row's logits."""
    hidden = tensors["model.embed_tokens.weight"][tokens]
    states = [hidden]
    for layer in range(TARGET["num_hidden_layers"]):
        hidden = ordinary_layer(
            hidden, tensors, f"model.layers.{layer}.", TARGET,
            range(len(tokens)))
        states.append(hidden)
    last = norm(hidden[-1], tensors["model.norm.weight"])
    return states, last @ tensors["lm_head.weight"].T


# ---------------------------------------------------------------------------
# Random checkpoints.

class RandomTensors:
    """Makes tensors. float16 holds their values exactly."""

    def __init__(self, seed):
        self.generator = numpy.random.default_rng(seed)
        self.tensors = {}

    def add(self, name, shape, mean=0.0, deviation=1.0):
        values = mean + deviation * self.generator.standard_normal(shape)
        self.tensors[name] = values.astype(numpy.float16)

    def matrix(self, name, outputs, inputs, scale=1.0):
        self.add(name, (outputs, inputs), 0.0, scale / inputs ** 0.5)

    def norm(self, name, size):
        self.add(name, size, 1.0, 0.4)

    def layer(self, prefix, config, attention_inputs):
        hidden, dim = config["hidden_size"], config["head_dim"]
        inner = config["intermediate_size"]
        q_size = config["num_attention_heads"] * dim
        kv_size = config["num_key_value_heads"] * dim
        self.norm(f"{prefix}input_layernorm.weight", hidden)
        for name, size in [("q", q_size), ("k", kv_size), ("v", kv_size)]:
            name = f"{prefix}self_attn.{name}_proj"
            self.matrix(f"{name}.weight", size, attention_inputs, 1.5)
            if config.get("attention_bias"):
                self.add(f"{name}.bias", size, 0.0, 0.5)
        self.matrix(f"{prefix}self_attn.o_proj.weight", hidden, q_size)
        if config.get("attention_bias"):
            self.add(f"{prefix}self_attn.o_proj.bias", hidden, 0.0, 0.5)
        if config["model_type"] == "qwen3":
            self.norm(f"{prefix}self_attn.q_norm.weight", dim)
            self.norm(f"{prefix}self_attn.k_norm.weight", dim)
        self.norm(f"{prefix}post_attention_layernorm.weight", hidden)
        self.matrix(f"{prefix}mlp.gate_proj.weight", inner, hidden)
        self.matrix(f"{prefix}mlp.up_proj.weight", inner, hidden)
        self.matrix(f"{prefix}mlp.down_proj.weight", hidden, inner)


def wide(tensors):
    """Returns float64 copies, and integers as they are."""
    return {name: tensor.astype(numpy.float64)
            if tensor.dtype == numpy.float16 else tensor
            for name, tensor in tensors.items()}


def random_target(seed):
    made, hidden = RandomTensors(seed), TARGET["hidden_size"]
    made.add("model.embed_tokens.weight", (TARGET["vocab_size"], hidden))
    for layer in range(TARGET["num_hidden_layers"]):
        made.layer(f"model.layers.{layer}.", TARGET, hidden)
    made.norm("model.norm.weight", hidden)
    made.matrix("lm_head.weight", TARGET["vocab_size"], hidden, 3.0)
    return made.tensors


def random_head(made, vocab, draft_vocab, hidden):
    """Adds a head for some of the vocabulary's tokens, and their numbers."""
    made.matrix("lm_head.weight", draft_vocab, hidden, 3.0)
    if draft_vocab != vocab:
        ids = numpy.sort(made.generator.permutation(vocab)[:draft_vocab])
        in_head = numpy.zeros(vocab, bool)
        in_head[ids] = True
        made.tensors["d2t"] = ids - numpy.arange(draft_vocab)
        made.tensors["t2d"] = in_head


# ---------------------------------------------------------------------------
# Goldens.

class Kind(NamedTuple):
    """A kind of drafter."""

    # The recipes by name, and the second number of their seeds.
    drafters: dict
    salt: int
    # Drafter(recipe, tensors, target): its `states` are the features as
    # numbers of the target's layers before them, `features(states)` their
    # rows, and `draft(tokens, features)` returns the drafted tokens, the
    # smallest margin of a choice, and further fields of the golden record.
    drafter: type
    # random_drafter(recipe, drafter, seed): the tensors.
    random_drafter: Callable
    # config_json(recipe): the configuration.
    config_json: Callable
    # misreadings(recipe, drafter): names and changes of a drafter that
    # ignores one option. Each must change some draft.
    misreadings: Callable
    # files(tensors): the tensors of each file.
    files: Callable = lambda tensors: {"model.safetensors": tensors}


def significant(values):
    return [float(f"{value:.7g}") for value in values]


def records(drafter, target, prompts):
    """Returns golden records, and the smallest margin."""
    made, smallest = [], numpy.inf
    for prompt in prompts:
        states, logits = target_states(target, prompt)
        second, best = numpy.sort(logits)[-2:]
        following = int(numpy.argmax(logits))
        features = drafter.features(states)
        drafted, margin, *more = drafter.draft(prompt + [following], features)
        smallest = min(smallest, margin, best - second)
        made.append({
            "prompt_ids": prompt, "next_id": following, "draft_ids": drafted,
            **dict(*more),
            "min_margin": significant([min(margin, best - second)])[0],
            "last_features": significant(features[-1])})
    return made, smallest


def matters(drafter, golden, target, prompts, changes):
    """Whether a misreading changes some draft or confidence."""
    kept = {name: getattr(drafter, name) for name in changes}
    vars(drafter).update(changes)
    other, _ = records(drafter, target, prompts)
    vars(drafter).update(kept)
    return any(one["draft_ids"] != two["draft_ids"]
               or numpy.any(numpy.abs(numpy.subtract(
                   one.get("confidences", 0), two.get("confidences", 0)))
                   > CONFIDENCE_DIFFERENCE)
               for one, two in zip(golden, other))


def make(kind, name, target, out):
    """Makes the drafter of a recipe with the first seed that fits."""
    recipe = kind.drafters[name]
    for seed in range(1, LAST_SEED):
        drafter = kind.drafter(recipe, {}, target)
        stored = kind.random_drafter(recipe, drafter, [seed, kind.salt])
        drafter = kind.drafter(recipe, wide(stored), target)
        generator = numpy.random.default_rng([seed, 7])
        prompts = [generator.integers(3, TARGET["vocab_size"], size).tolist()
                   for size in PROMPT_SIZES]
        golden, margin = records(drafter, target, prompts)
        ignored = [] if margin < MARGIN else [
            what for what, changes in kind.misreadings(recipe, drafter)
            if not matters(drafter, golden, target, prompts, changes)]
        varied = len({token for record in golden
                      for token in record["draft_ids"]}) >= 6
        if margin >= MARGIN and varied and not ignored:
            break
    else:
        raise SystemExit(f"{name}: no seed fits; unimportant: {ignored}")
    folder = out / name
    folder.mkdir()
    for file, tensors in kind.files(stored).items():
        save_file(tensors, folder / file)
    write_json(folder / "config.json", kind.config_json(recipe))
    lines = ",\n".join(f"  {json.dumps(record)}" for record in golden)
    header = json.dumps({"numpy": numpy.__version__, "seed": seed,
                         "layers_before_features": drafter.states})
    (folder / "golden.json").write_text(
        f'{{"header": {header},\n "prompts": [\n{lines}\n]}}\n')
    print(f"{name}: seed {seed}, smallest margin {margin:.4f}")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def main(kind, description):
    """Makes the target and all drafters of a kind in the folder `--out`."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    (out / "target").mkdir(parents=True)
    stored = random_target(11)
    save_file(stored, out / "target" / "model.safetensors")
    write_json(out / "target" / "config.json", TARGET)
    for name in kind.drafters:
        make(kind, name, wide(stored), out)
