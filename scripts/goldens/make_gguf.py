#!/usr/bin/env python3
"""Make tiny GGUF files with the Python package `gguf` of llama.cpp.

For each model this script writes a GGUF file, or the parts of a split one, and
describes all of them in `golden.json`: the configuration, and the SHA-256 of
each tensor's values. The values are those that the package restores from the
file, as little-endian float32, under the names and in the order of Hugging
Face. A test of forerun reads the files and compares.

Usage:

    python make_gguf.py --out DIR

README.md in the same folder has the commands.
"""

import argparse
import hashlib
import json
import zlib
from pathlib import Path

import gguf
import numpy

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 1, 4, 2, 8, 7
EXPERTS, EXPERTS_PER_TOKEN = 3, 2

F32 = gguf.GGMLQuantizationType.F32
F16 = gguf.GGMLQuantizationType.F16
BF16 = gguf.GGMLQuantizationType.BF16
Q8_0 = gguf.GGMLQuantizationType.Q8_0
Q4_0 = gguf.GGMLQuantizationType.Q4_0
MXFP4 = gguf.GGMLQuantizationType.MXFP4

# For each model: its architecture, the type of each matrix in turn, and what
# it has beyond the common parts.
MODELS = {
    "llama": ("llama", [F32, F16, BF16, Q8_0, Q4_0], {"divisors", "head"}),
    "qwen2": ("qwen2", [Q8_0, F16], {"biases"}),
    "qwen3": ("qwen3", [BF16, Q4_0], {"norms", "head", "alignment"}),
    "split": ("llama", [Q8_0], {"biases", "head", "parts"}),
    "qwen3moe": ("qwen3moe", [Q8_0, Q4_0], {"norms", "experts"}),
    "gpt-oss": ("gpt-oss", [MXFP4], {"biases", "experts", "head", "sinks"}),
}


def values(name, shape):
    """Return numbers that depend on the tensor's name alone."""
    random = numpy.random.default_rng(zlib.crc32(name.encode()))
    return random.normal(0, 0.5, shape).astype(numpy.float32)


def tensors(features):
    """Yield the tensors of a model: the names in GGUF and in Hugging Face
    checkpoints, the shape, and the number of heads of rotated rows."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield "token_embd.weight", "model.embed_tokens.weight", (VOCAB, HIDDEN), 0
    for layer in range(LAYERS):
        parts = [
            ("attn_norm.weight", "input_layernorm.weight", (HIDDEN,), 0),
            ("attn_q.weight", "self_attn.q_proj.weight", (queries, HIDDEN), HEADS),
            ("attn_k.weight", "self_attn.k_proj.weight", (keys, HIDDEN), KV_HEADS),
            ("attn_v.weight", "self_attn.v_proj.weight", (keys, HIDDEN), 0),
            ("attn_output.weight", "self_attn.o_proj.weight", (HIDDEN, queries), 0),
            ("post_attention_norm.weight" if "sinks" in features else "ffn_norm.weight",
             "post_attention_layernorm.weight", (HIDDEN,), 0),
        ]
        projections = ("gate", "up", "down")
        if "experts" in features:
            parts.append(("ffn_gate_inp.weight", "mlp.gate.weight", (EXPERTS, HIDDEN), 0))
            shape = (EXPERTS, HIDDEN, HIDDEN)
            parts += [(f"ffn_{name}_exps.weight", f"mlp.experts.*.{name}_proj.weight", shape, 0)
                      for name in projections]
        else:
            parts += [(f"ffn_{name}.weight", f"mlp.{name}_proj.weight", (HIDDEN, HIDDEN), 0)
                      for name in projections]
        if "sinks" in features:
            parts += [
                ("attn_sinks.weight", "self_attn.sinks", (HEADS,), 0),
                ("attn_output.bias", "self_attn.o_proj.bias", (HIDDEN,), 0),
                ("ffn_gate_inp.bias", "mlp.gate.bias", (EXPERTS,), 0),
            ]
            parts += [(f"ffn_{name}_exps.bias", f"mlp.experts.*.{name}_proj.bias",
                       (EXPERTS, HIDDEN), 0) for name in projections]
        if "biases" in features:
            parts += [
                ("attn_q.bias", "self_attn.q_proj.bias", (queries,), HEADS),
                ("attn_k.bias", "self_attn.k_proj.bias", (keys,), KV_HEADS),
                ("attn_v.bias", "self_attn.v_proj.bias", (keys,), 0),
            ]
        if "norms" in features:
            parts += [
                ("attn_q_norm.weight", "self_attn.q_norm.weight", (HEAD_DIM,), 0),
                ("attn_k_norm.weight", "self_attn.k_norm.weight", (HEAD_DIM,), 0),
            ]
        for name, hugging_face, shape, heads in parts:
            yield f"blk.{layer}.{name}", f"model.layers.{layer}.{hugging_face}", shape, heads
    yield "output_norm.weight", "model.norm.weight", (HIDDEN,), 0
    if "head" in features:
        yield "output.weight", "lm_head.weight", (VOCAB, HIDDEN), 0


def permute(rows, heads):
    """Reorder rows as llama.cpp's conversion of a Llama does, for a rotation of
    neighbours instead of halves."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def unpermute(rows, heads):
    """Undo `permute`."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def write_metadata(writer, features):
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv([KV_HEADS] * LAYERS if "parts" in features else KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    if "experts" in features:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(EXPERTS_PER_TOKEN)
        writer.add_expert_feed_forward_length(HIDDEN)
    if "sinks" in features:
        writer.add_sliding_window(16)
    if not features & {"divisors", "parts", "experts"}:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"é{token}" for token in range(VOCAB)])
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")


def make(folder, model):
    """Write a model. Return its entry in `golden.json`."""
    architecture, types, features = MODELS[model]
    split = {"split_max_tensors": 6} if "parts" in features else {}
    writer = gguf.GGUFWriter(folder / f"{model}.gguf", architecture, **split)
    if "alignment" in features:
        writer.add_custom_alignment(64)
    write_metadata(writer, features)
    hashes = {}
    matrices = 0
    for name, hugging_face, shape, heads in tensors(features):
        stored = values(name, shape)
        permuted = heads if architecture == "llama" else 0
        if permuted:
            stored = permute(stored, permuted)
        kind = F32
        is_f32 = name.endswith("bias") or "gate_inp" in name
        if len(shape) > 1 and not is_f32:
            kind = types[matrices % len(types)]
            matrices += 1
        encoded = gguf.quantize(stored, kind)
        writer.add_tensor(name, encoded, raw_dtype=kind)
        restored = gguf.dequantize(encoded, kind).reshape(shape).astype("<f4")
        if permuted:
            restored = unpermute(restored, permuted)
        restored = numpy.ascontiguousarray(restored)
        parts = enumerate(restored) if "*" in hugging_face else [("*", restored)]
        for number, part in parts:
            part_name = hugging_face.replace("*", str(number))
            hashes[part_name] = hashlib.sha256(part.tobytes()).hexdigest()
    if "divisors" in features:
        writer.add_tensor(
            "rope_freqs.weight", numpy.array([1, 1.5, 8, 8], dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = sorted(file.name for file in folder.glob(f"{model}*.gguf"))
    return {"files": files, "architecture": architecture,
            "features": sorted(features), "sha256": hashes}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.gguf"):
        old.unlink()
    golden = {"header": {"script": "scripts/goldens/make_gguf.py",
                         "gguf": gguf_version()},
              "models": {model: make(folder, model) for model in MODELS}}
    text = json.dumps(golden, indent=1) + "\n"
    (folder / "golden.json").write_text(text)


def gguf_version():
    from importlib.metadata import version
    return version("gguf")


if __name__ == "__main__":
    main()
