#!/usr/bin/env python3
"""Make one small LoRA adapter per way of storing projections, with golden logits.

Each adapter is one of `peft`, with random matrices, for a model of
`make_families.py`. The folder is as `peft` saves it, and `golden.json` has the
results of `transformers` with the adapter. The first one is also a GGUF file, by
the rules of llama.cpp's `convert_lora_to_gguf.py`.

Usage:

    python make_adapters.py --families DIR --out DIR
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy
import peft
import torch
from safetensors.numpy import load_file

from make_families import LAST_SEED, PROMPT_SIZES, compute_experts_one_by_one, make_record
from make_goldens import load_hugging_face_model

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

# The model of each adapter, and its options.
ADAPTERS = {
    "llama3": {"r": 3, "lora_alpha": 6, "target_modules": ATTENTION + MLP},
    # √rank, some layers and projections.
    "qwen3": {"r": 8, "lora_alpha": 8, "use_rslora": True, "layers_to_transform": [1],
              "target_modules": ["q_proj", "v_proj", "down_proj"]},
    # Fused projections.
    "phi3": {"r": 2, "lora_alpha": 4, "target_modules": "all-linear"},
    # Fused gate and up, neighbours of RoPE.
    "glm": {"r": 4, "lora_alpha": 8,
            "target_modules": [*ATTENTION, "gate_up_proj", "down_proj"]},
    # Matrices with the inputs first, one for queries, keys and values.
    "gpt2": {"r": 4, "lora_alpha": 8, "fan_in_fan_out": True,
             "target_modules": ["c_attn", "c_proj", "c_fc"]},
    # Queries with gates, and recurrent layers, which have no adapter.
    "qwen3-next": {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION},
}

GGUF_PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}


def load(folder):
    model = load_hugging_face_model(folder)
    compute_experts_one_by_one(model)
    return model


def adapted(folder, options, seed):
    """Return a model with a random adapter."""
    torch.manual_seed(seed)
    model = load(folder)
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options)
    model = peft.get_peft_model(model, config).eval()
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            deviation = 0.7 / parameter.shape[1] ** 0.5
            torch.nn.init.normal_(parameter, std=deviation)
    return model


def make_adapter(name, options, families, out):
    for seed in range(LAST_SEED):
        model = adapted(families / name, options, seed)
        numbers = numpy.random.default_rng(seed)
        vocabulary = model.config.vocab_size
        prompts = [[1, *numbers.integers(3, vocabulary, size - 1).tolist()]
                   for size in PROMPT_SIZES]
        records = [make_record(model, prompt) for prompt in prompts]
        if None in records:
            continue
        plain = load(families / name)
        with torch.no_grad():
            inputs = torch.tensor([prompts[1]])
            difference = (model(inputs).logits - plain(inputs).logits).abs().max()
        assert difference > 0.5, f"{name}: the adapter changes logits by {difference}"
        model.peft_config["default"].base_model_name_or_path = name
        model.save_pretrained(out / name)
        (out / name / "README.md").unlink(missing_ok=True)
        golden = {"header": {"script": "scripts/goldens/make_adapters.py", "seed": seed,
                             "peft": peft.__version__}, "prompts": records}
        (out / name / "golden.json").write_text(json.dumps(golden) + "\n")
        print(name, "seed", seed)
        return
    raise ValueError(f"{name}: no seed without near ties")


def write_gguf(folder, model, file):
    """Write the adapter of a Llama, whose rows of queries and keys are permuted."""
    config = json.loads((model / "config.json").read_text())
    options = json.loads((folder / "adapter_config.json").read_text())
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(options["lora_alpha"]))
    for name, values in sorted(load_file(folder / "adapter_model.safetensors").items()):
        module, matrix, _ = name.removeprefix("base_model.model.model.layers.").rsplit(".", 2)
        layer, module = module.split(".", 1)
        part = GGUF_PARTS[module]
        if matrix == "lora_B" and part in heads:
            halves = values.reshape(heads[part], 2, -1, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        stored = f"blk.{layer}.{part}.weight.{matrix.lower()}"
        writer.add_tensor(stored, numpy.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    for name, options in ADAPTERS.items():
        make_adapter(name, options, arguments.families, arguments.out)
    name = next(iter(ADAPTERS))
    out = arguments.out / name
    write_gguf(out, arguments.families / name, out / "adapter.gguf")


if __name__ == "__main__":
    main()
