#!/usr/bin/env python3
"""Make one tiny random checkpoint per format of quantised matrices.

For each format this script writes a folder with `config.json`, `model.safetensors`
and a `tokenizer.json` of numbered words, and `golden.json`: the SHA-256 of each
matrix as restored by the format's definition, in f32, and the greedy tokens of
Hugging Face `transformers` for these matrices, on CPU `torch` in float32.

Quants and scales are drawn at random. The weights are restored in numpy:
(quant − zero) · scale, in f32.

Usage:

    python make_quantized.py --out DIR [--only NAME …] [--check]

With `--check`, the packages that define the formats restore the same weights:
`transformers`, `compressed_tensors` and, from the files given, AutoAWQ and
GPTQModel. README.md in the same folder explains the fields.
"""

import argparse
import ast
import hashlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import torch
import transformers
from safetensors.torch import save_file

from make_families import compute_experts_one_by_one, write_tokenizer

# The number of greedy tokens.
NEW_TOKENS = 48

# The smallest difference between the two largest logits of a step.
NEAR_TIE = 1e-3

# The last seed to try. Seeds are tried in order until no text has a near tie.
LAST_SEED = 60

PROMPT = [1, 9, 4, 33]

# The place in a word of each of AutoAWQ's successive integers.
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]

# The values of E2M1.
TINY_FLOATS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def llama(hidden, head_dim, intermediate, **options):
    """Return the configuration of a small Llama."""
    return transformers.LlamaConfig(**{
        "vocab_size": 67, "hidden_size": hidden, "head_dim": head_dim,
        "intermediate_size": intermediate, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "bos_token_id": 1, "eos_token_id": 2} | options)


def odd():
    """Return a Llama whose sizes are no multiples of 32."""
    return llama(40, 10, 52)


def even():
    """Return a Llama whose sizes are multiples of 32."""
    return llama(64, 16, 96)


def eights():
    """Return a Llama whose sizes are multiples of 8."""
    return llama(40, 8, 56)


def phi3():
    """Return a Phi-3, which stores queries, keys and values as one matrix."""
    return transformers.Phi3Config(
        vocab_size=67, hidden_size=64, intermediate_size=96,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, original_max_position_embeddings=128,
        rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=None)


def gpt_oss():
    """Return a gpt-oss."""
    return transformers.GptOssConfig(
        vocab_size=67, hidden_size=64, intermediate_size=32, head_dim=16,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=3, num_experts_per_tok=2,
        max_position_embeddings=128, sliding_window=64,
        layer_types=["full_attention"], pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1, eos_token_id=2)


def pack(integers, bits, axis):
    """Pack integers in 32-bit words along an axis, the first in the lowest bits."""
    per_word = 32 // bits
    integers = numpy.moveaxis(integers.astype(numpy.uint32), axis, -1)
    missing = -integers.shape[-1] % per_word
    integers = numpy.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, missing)])
    integers = integers.reshape(*integers.shape[:-1], -1, per_word)
    shifts = numpy.arange(per_word, dtype=numpy.uint32) * bits
    words = (integers << shifts).sum(axis=-1, dtype=numpy.uint32)
    return numpy.ascontiguousarray(numpy.moveaxis(words, -1, axis)).view(numpy.int32)


def pack_awq(integers):
    """Pack 4-bit integers along the last axis in AutoAWQ's order."""
    eights = integers.reshape(*integers.shape[:-1], -1, 8)
    ordered = numpy.empty_like(eights)
    for index, place in enumerate(AWQ_PLACES):
        ordered[..., place] = eights[..., index]
    return pack(ordered.reshape(integers.shape), 4, -1)


def restore(quants, zeros, scales):
    """Return (quants − zeros) · scales in f32. The difference is exact."""
    difference = quants.astype(numpy.float32) - zeros.astype(numpy.float32)
    return difference * scales.astype(numpy.float32)


def spread(values, groups, rows_per_value=1):
    """Return values `[rows, groups]` for each row and each column's group."""
    return numpy.repeat(values, rows_per_value, axis=0)[:, groups]


def random_scales(rng, shape, size, dtype):
    """Return positive scales of about this size, in a type of numpy or torch."""
    scales = torch.tensor(size * rng.uniform(0.5, 2.0, shape)).to(dtype)
    return scales, scales.to(torch.float32).numpy()


def random_fp8(rng, shape):
    """Return 8-bit floats (E4M3) without NaN, and their values."""
    quants = rng.integers(0, 256, shape, dtype=numpy.uint8)
    quants[quants & 0x7F == 0x7F] ^= 1
    quants = torch.tensor(quants).view(torch.float8_e4m3fn)
    sign, exponent, mantissa = (part.astype(numpy.float64) for part in (
        quants.view(torch.uint8).numpy() >> 7,
        quants.view(torch.uint8).numpy() >> 3 & 15,
        quants.view(torch.uint8).numpy() & 7))
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    values = numpy.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    return quants, (values * (1 - 2 * sign)).astype(numpy.float32)


def fp8(block, scale="weight_scale_inv", dtype=torch.float32, powers=False, shape=None):
    """Return the maker of matrices of 8-bit floats, with a scale for a block."""

    def make(rng, rows, columns):
        quants, values = random_fp8(rng, (rows, columns))
        height, width = block(rows, columns)
        grid = (-(-rows // height), -(-columns // width))
        if powers:
            exponents = rng.integers(118, 121, grid, dtype=numpy.uint8)
            scales = torch.tensor(exponents).view(torch.float8_e8m0fnu)
            numbers = 2.0 ** (exponents.astype(numpy.float32) - 127)
        else:
            scales, numbers = random_scales(rng, grid, 1 / 300, dtype)
        wide = numpy.repeat(numpy.repeat(numbers, height, 0), width, 1)
        weights = restore(values, numpy.zeros(()), wide[:rows, :columns])
        stored = scales if shape is None else scales.reshape(shape(rows))
        return {"weight": quants, scale: stored}, weights

    return make


def whole(rows, columns):
    return rows, columns


def channel(rows, columns):
    return 1, columns


def blocks(rows, columns):
    return 16, 24


def int8(rng, rows, columns):
    """Make a matrix of 8-bit integers with a scale for each output."""
    quants = rng.integers(-128, 128, (rows, columns), dtype=numpy.int8)
    scales, numbers = random_scales(rng, (rows, 1), 1 / 300, torch.bfloat16)
    weights = restore(quants, numpy.zeros(()), numbers)
    return {"weight": torch.tensor(quants), "weight_scale": scales}, weights


def packed(bits, group, symmetric, dtype=torch.bfloat16):
    """Return the maker of matrices as compressed-tensors packs them."""

    def make(rng, rows, columns):
        size = group or columns
        groups = numpy.arange(columns) // size
        number = columns // size
        quants = rng.integers(0, 2**bits, (rows, columns))
        scales, numbers = random_scales(rng, (rows, number), 1.2 / 2**bits, dtype)
        parts = {"weight_packed": torch.tensor(pack(quants, bits, 1)),
                 "weight_scale": scales, "weight_shape": torch.tensor([rows, columns])}
        zeros = numpy.full((rows, number), 2 ** (bits - 1))
        if not symmetric:
            zeros = rng.integers(0, 2**bits, (rows, number))
            parts["weight_zero_point"] = torch.tensor(pack(zeros, bits, 0))
        weights = restore(quants, spread(zeros, groups), spread(numbers, groups))
        return parts, weights

    return make


def awq(group, dtype=torch.float16):
    """Return the maker of matrices in AutoAWQ's GEMM layout."""

    def make(rng, rows, columns):
        groups = numpy.arange(columns) // group
        number = columns // group
        quants = rng.integers(0, 16, (rows, columns))
        zeros = rng.integers(0, 16, (rows, number))
        scales, numbers = random_scales(rng, (rows, number), 0.08, dtype)
        weights = restore(quants, spread(zeros, groups), spread(numbers, groups))
        return {"qweight": torch.tensor(pack_awq(quants.T)),
                "qzeros": torch.tensor(pack_awq(zeros.T)),
                "scales": scales.T.contiguous()}, weights

    return make


def gptq(bits, group, *, symmetric, version=1, ordered=False, bias=False):
    """Return the maker of matrices as GPTQModel writes them."""

    def make(rng, rows, columns):
        size = group or columns
        groups = numpy.arange(columns) // size
        number = -(-columns // size)
        if ordered:
            groups = rng.permutation(groups)
        quants = rng.integers(0, 2**bits, (rows, columns))
        zeros = numpy.full((rows, number), 2 ** (bits - 1))
        if not symmetric:
            # Zero is an edge: version 1 stores it as −1, with a borrow in the word.
            zeros = rng.integers(0, 2**bits, (rows, number))
        words = pack(zeros.T, bits, 1).view(numpy.uint32)
        if version == 1:
            ones = sum(1 << place for place in range(0, 32, bits))
            words = words - numpy.uint32(ones)
        scales, numbers = random_scales(rng, (rows, number), 1.2 / 2**bits, torch.float16)
        weights = restore(quants, spread(zeros, groups), spread(numbers, groups))
        parts = {"qweight": torch.tensor(pack(quants.T, bits, 0)),
                 "qzeros": torch.tensor(words.view(numpy.int32)),
                 "scales": scales.T.contiguous(),
                 "g_idx": torch.tensor(groups.astype(numpy.int32))}
        if bias:
            parts["bias"] = torch.zeros(rows, dtype=torch.float16)
        return parts, weights

    return make


def mxfp4(rng, experts, rows, columns):
    """Make a tensor of experts with outputs as rows."""
    codes = rng.integers(0, 16, (experts, rows, columns))
    exponents = rng.integers(123, 126, (experts, rows, columns // 32), dtype=numpy.uint8)
    values = numpy.array(TINY_FLOATS, dtype=numpy.float32)[codes % 8]
    # Negative zero counts as zero.
    values = numpy.where((codes >= 8) & (values > 0), -values, values)
    powers = 2.0 ** (exponents.astype(numpy.float32) - 127)
    weights = values * numpy.repeat(powers, 32, axis=2)
    pairs = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(numpy.uint8)
    pairs = pairs.reshape(experts, rows, columns // 32, 16)
    return {"blocks": torch.tensor(pairs), "scales": torch.tensor(exponents)}, weights


def compressed(format, weights, ignore=("lm_head",)):
    """Return the options of compressed-tensors."""
    defaults = {"symmetric": True, "strategy": None, "group_size": None,
                "block_structure": None, "dynamic": False, "actorder": None,
                "observer": "minmax", "observer_kwargs": {}}
    group = {"targets": ["Linear"], "weights": defaults | weights,
             "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": format,
            "config_groups": {"group_0": group}, "ignore": list(ignore),
            "kv_cache_scheme": None, "quantization_status": "compressed"}


def fp8_options(**options):
    return {"quant_method": "fp8", "activation_scheme": "dynamic"} | options


def gptq_options(bits, group, **options):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": True,
            "desc_act": False, "damp_percent": 0.1} | options


FLOAT = {"num_bits": 8, "type": "float"}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm",
       "modules_to_not_convert": None}

# For each format: the model, `quantization_config`, and the maker of a matrix.
# `head` says that the head is quantised, too.
FORMATS = {
    "fp8-block": (odd, fp8_options(weight_block_size=[16, 24], fmt="e4m3"), fp8(blocks)),
    "fp8-power": (odd, fp8_options(weight_block_size=[16, 24], scale_fmt="ue8m0"),
                  fp8(blocks, powers=True)),
    "fp8-tensor": (odd, fp8_options(ignored_layers=["lm_head"]),
                   fp8(whole, "weight_scale", shape=lambda rows: ())),
    "compressed-fp8-channel": (
        odd, compressed("float-quantized", FLOAT | {"strategy": "channel"}),
        fp8(channel, "weight_scale", torch.bfloat16)),
    "compressed-fp8-tensor": (
        odd, compressed("float-quantized", FLOAT | {"strategy": "tensor"}),
        fp8(whole, "weight_scale", shape=lambda rows: (1,))),
    "compressed-fp8-block": (
        odd, compressed("float-quantized", FLOAT | {
            "strategy": "block", "block_structure": [16, 24]}),
        fp8(blocks, "weight_scale")),
    "compressed-int8": (
        even, compressed("int-quantized", {
            "num_bits": 8, "type": "int", "strategy": "channel"}), int8),
    "compressed-int4": (
        even, compressed("pack-quantized", {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
        packed(4, 32, True)),
    "compressed-int4-zeros": (
        eights, compressed("pack-quantized", {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 8,
            "symmetric": False}),
        packed(4, 8, False, torch.float32)),
    "compressed-int8-packed": (
        odd, compressed("pack-quantized", {
            "num_bits": 8, "type": "int", "strategy": "channel"}),
        packed(8, None, True, torch.float32)),
    "awq": (even, AWQ | {"group_size": 32}, awq(32)),
    "awq-small": (eights, AWQ | {"group_size": 8}, awq(8, torch.float32)),
    "gptq": (even, gptq_options(4, 32), gptq(4, 32, symmetric=True, bias=True)),
    "gptq-zeros": (even, gptq_options(4, 64, sym=False, checkpoint_format="gptq"),
                   gptq(4, 64, symmetric=False)),
    "gptq-order": (eights, gptq_options(4, 16, sym=False, desc_act=True),
                   gptq(4, 16, symmetric=False, ordered=True)),
    "gptq-int8": (even, gptq_options(8, 32), gptq(8, 32, symmetric=True)),
    "gptq-int8-v2": (
        eights, gptq_options(8, -1, sym=False, checkpoint_format="gptq_v2"),
        gptq(8, None, symmetric=False, version=2)),
    "gptq-phi3": (phi3, gptq_options(4, 32), gptq(4, 32, symmetric=True)),
    "mxfp4": (gpt_oss, {"quant_method": "mxfp4",
                        "modules_to_not_convert": ["lm_head"]}, mxfp4),
}


def make_matrices(rng, name, state, make):
    """Return the stored parts of all matrices, and the restored state."""
    stored, restored = {}, {}
    for tensor, value in state.items():
        shape = tuple(value.shape)
        if name == "mxfp4" and tensor.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, columns, rows = shape
            parts, weights = make(rng, experts, rows, columns)
            for part, values in parts.items():
                stored[f"{tensor}_{part}"] = values
            restored[tensor] = torch.tensor(weights).transpose(1, 2).contiguous()
        elif name != "mxfp4" and ".layers." in tensor and len(shape) == 2:
            module = tensor.removesuffix(".weight")
            parts, weights = make(rng, *shape)
            for part, values in parts.items():
                stored[f"{module}.{part}"] = values
            restored[tensor] = torch.tensor(weights)
        else:
            size = 0.3 if len(shape) == 1 else 1.0 if "embed" in tensor else 0.4
            values = size * rng.normal(size=shape)
            if "norm" in tensor:
                values = rng.uniform(0.6, 1.4, shape)
            values = torch.tensor(values).to(torch.bfloat16)
            stored[tensor] = values
            restored[tensor] = values.to(torch.float32)
    return stored, restored


@torch.no_grad()
def greedy(model):
    """Return the greedy tokens and the smallest lead of one."""
    tokens, lead = list(PROMPT), float("inf")
    for _ in range(NEW_TOKENS):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
    return tokens[len(PROMPT):], lead


def outputs_of(name, tensor, weights, config):
    """Return the matrices of a restored tensor by forerun's names, `[outputs, inputs]`."""
    layer = tensor.split(".self_attn.")[0].split(".mlp.")[0]
    if tensor.endswith("experts.gate_up_proj"):
        parts = {"gate_proj": weights[:, :, 0::2], "up_proj": weights[:, :, 1::2]}
    elif tensor.endswith("experts.down_proj"):
        parts = {"down_proj": weights}
    elif tensor.endswith("qkv_proj.weight"):
        head = config.hidden_size // config.num_attention_heads
        queries, keys = config.hidden_size, config.num_key_value_heads * head
        parts = torch.split(weights, [queries, keys, keys])
        return {f"{layer}.self_attn.{part}_proj.weight": values
                for part, values in zip("qkv", parts)}
    elif tensor.endswith("mlp.gate_up_proj.weight"):
        return {f"{layer}.mlp.{part}_proj.weight": values
                for part, values in zip(["gate", "up"], weights.chunk(2))}
    else:
        is_matrix = weights.ndim == 2 and not tensor.endswith(("bias", "router.weight"))
        return {tensor: weights} if is_matrix else {}
    return {f"{layer}.mlp.experts.{expert}.{part}.weight": values[expert].T
            for part, values in parts.items() for expert in range(len(values))}


def digest(values):
    """Return the SHA-256 of values as little-endian f32."""
    return hashlib.sha256(values.contiguous().numpy().astype("<f4").tobytes()).hexdigest()


def make_format(name, folder):
    """Write the folder of a format. Return its parts and weights."""
    config_of, options, make = FORMATS[name]
    config = config_of()
    for seed in range(LAST_SEED + 1):
        rng = numpy.random.default_rng([seed, *name.encode()])
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager").eval()
        if name == "mxfp4":
            compute_experts_one_by_one(model)
        stored, restored = make_matrices(rng, name, model.state_dict(), make)
        model.load_state_dict(restored)
        tokens, lead = greedy(model)
        if lead >= NEAR_TIE and len(set(tokens)) >= 12:
            break
    else:
        raise ValueError(f"{name}: every seed has a near tie or a dull text")
    folder.mkdir(parents=True)
    file = json.loads(config.to_json_string(use_diff=False))
    file = {key: value for key, value in file.items() if value is not None}
    file |= {"architectures": [type(model).__name__], "dtype": "bfloat16",
             "quantization_config": options}
    (folder / "config.json").write_text(json.dumps(file, indent=1) + "\n")
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    write_tokenizer(folder / "tokenizer.json", config.vocab_size)
    digests = {}
    for tensor, weights in restored.items():
        for own, values in outputs_of(name, tensor, weights, config).items():
            digests[own] = digest(values)
    golden = {"seed": seed, "prompt": PROMPT, "generated": tokens, "weights": digests}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    print(f"{name}: seed {seed}, lead {lead:.4f}, {len(set(tokens))} tokens")
    return stored, restored


def module_at(path):
    """Import a module from a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def restored_by_gptqmodel(path, parts, bits, version):
    """Restore a matrix with the functions of GPTQModel, without the rest of it."""
    names = {"_torch_right_shift", "dequantize_weight", "_dequantize_from_codes"}
    tree = ast.parse(path.read_text())
    found = [node for node in ast.walk(tree)
             if isinstance(node, ast.FunctionDef) and node.name in names]
    # The last one of a name is that of the packed class.
    functions = ast.Module(list({node.name: node for node in found}.values()), [])
    space = {"t": torch}
    exec(compile(functions, str(path), "exec", dont_inherit=True), space)
    zeros = parts["qzeros"]
    if version == 1:
        # `convert_gptq_v1_to_v2_format_module`.
        zeros = zeros + (0b00010001000100010001000100010001 if bits == 4
                         else 0b00000001000000010000000100000001)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    layer = SimpleNamespace(
        planar=False, bits=bits, maxq=2**bits - 1, pack_factor=32 // bits,
        qweight=parts["qweight"], qzeros=zeros, g_idx=parts["g_idx"],
        scales=parts["scales"].to(torch.float32), dequant_dtype=torch.int16,
        in_features=len(parts["g_idx"]), wf_unsqueeze_zero=shifts.reshape(1, 1, -1),
        wf_unsqueeze_neg_one=shifts.reshape(1, -1, 1),
        _init_wf_unsqueeze_buffers=lambda: None)
    layer._dequantize_from_codes = lambda *values, **options: (
        space["_dequantize_from_codes"](layer, *values, **options))
    return space["dequantize_weight"](layer).T


def restored_by_peer(name, parts, awq_file, gptq_file):
    """Return a matrix as its format's package restores it; None without it."""
    _, options, _ = FORMATS[name]
    method = options["quant_method"]
    if method == "fp8":
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize
        scale = parts.get("weight_scale_inv", parts.get("weight_scale"))
        quants = parts["weight"]
        if scale.ndim == 2:
            # transformers requires whole blocks.
            padded = [number * block for number, block in zip(scale.shape, [16, 24])]
            quants = torch.zeros(padded, dtype=torch.float32)
            quants[:parts["weight"].shape[0], :parts["weight"].shape[1]] = parts["weight"].float()
            quants = quants.to(torch.float8_e4m3fn)
        rows, columns = parts["weight"].shape
        weights = Fp8Dequantize(None)._dequantize_one(quants, scale, torch.float32)
        return weights[:rows, :columns]
    if method == "compressed-tensors":
        from compressed_tensors.compressors.naive_quantized.base import (
            NaiveQuantizationCompressor as Naive)
        from compressed_tensors.compressors.pack_quantized.base import (
            PackedQuantizationCompressor as Packed)
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        weights = {key: value for key, value in
                   options["config_groups"]["group_0"]["weights"].items() if value is not None}
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
        compressor = Packed if "weight_packed" in parts else Naive
        parts = parts | {"weight_scale": parts["weight_scale"].to(torch.float32)}
        return compressor.decompress(parts, scheme)["weight"].to(torch.float32)
    if method == "awq" and awq_file:
        unpack = module_at(Path(awq_file))
        return unpack.dequantize_gemm(
            parts["qweight"], parts["qzeros"], parts["scales"].to(torch.float32), 4,
            options["group_size"]).T
    if method == "gptq" and gptq_file:
        version = 2 if options.get("checkpoint_format") == "gptq_v2" else 1
        return restored_by_gptqmodel(Path(gptq_file), parts, options["bits"], version)
    if method == "mxfp4":
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors
        return convert_moe_packed_tensors(
            parts["blocks"], parts["scales"], dtype=torch.float32) + 0.0
    return None


def check(name, stored, restored, *files):
    """Compare restored matrices with those of the format's package."""
    compared = 0
    for tensor, weights in restored.items():
        module = tensor.removesuffix(".weight")
        separator = "_" if name == "mxfp4" else "."
        prefix = module + separator
        parts = {key.removeprefix(prefix): value for key, value in stored.items()
                 if key.startswith(prefix)}
        if weights.ndim < 2 or len(parts) < 2:
            continue
        peer = restored_by_peer(name, parts, *files)
        if peer is not None:
            if not torch.equal(peer, weights):
                raise ValueError(f"{name}: {tensor} differs from its package's")
            compared += 1
    print(f"{name}: {compared} matrices equal those of the format's package")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=FORMATS)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--awq", help="the file awq/utils/packing_utils.py of AutoAWQ")
    parser.add_argument("--gptq", help="gptqmodel/nn_modules/qlinear/__init__.py of GPTQModel")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.only or FORMATS:
        folder = arguments.out / name
        shutil.rmtree(folder, ignore_errors=True)
        stored, restored = make_format(name, folder)
        if arguments.check:
            check(name, stored, restored, arguments.awq, arguments.gptq)


if __name__ == "__main__":
    sys.exit(main())
