"""Create golden blocks of ggml's block types with the Python package `gguf`.

For each type: random blocks with ordinary and extreme scales, and the weights that `gguf` reads from them.
For the simple types also weights, and the blocks that `gguf` makes of them. See README.md.
"""

import argparse
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

SEED = 20

# The places of the f16 scales in a block of each type. MXFP4 has an exponent in its first byte.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
}

# Zeros, subnormal, ordinary and huge scales of both signs. None is an ordinary random scale.
SCALES = [None, None, 0.0, -0.0, 2**-24, -(2**-24), 1023 * 2**-24, 2**-14, 1.0, -0.0123, 65504.0, -65504.0]
EXPONENTS = [0, 1, 2, 3, 100, 126, 127, 128, 200, 252, 253, 254, 255]

# Blocks with all bits equal, so that every scale, minimum and quant takes its extremes.
PATTERNS = [0x00, 0xFF, 0x0F, 0xF0]

# The types for which `gguf` can make blocks.
QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def golden_blocks(name, rng):
    """Return blocks of a type, `[blocks, bytes]`. Larger blocks are fewer."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    count = len(EXPONENTS) if name == "MXFP4" else len(SCALES) if weights == 32 else 7
    blocks = rng.integers(0, 256, (len(PATTERNS) + count, size), dtype=np.uint8)
    blocks[: len(PATTERNS)] = np.array(PATTERNS, dtype=np.uint8)[:, None]
    if name == "MXFP4":
        blocks[: len(PATTERNS), 0] = 127
        blocks[len(PATTERNS) :, 0] = EXPONENTS
    for place, at in enumerate(HALVES[name]):
        for index, block in enumerate(blocks):
            # Another order for the second scale, so that the two are extreme independently.
            scale = SCALES[(index * (1 + 4 * place) + place) % len(SCALES)]
            if scale is None or index < len(PATTERNS):
                scale = rng.normal() * 0.01
            block[at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), dtype=np.uint8)
    return blocks


def golden_weights(rng):
    """Return weights to make blocks of, `[rows, 32]`."""
    rows = [
        np.zeros(32),
        np.full(32, 0.37),
        np.full(32, -2.5),
        np.eye(32)[5] * -3.1,
        np.tile([1.25, -1.25], 16),
        np.tile([0.5, -0.5], 16) * 1e-6,
        np.linspace(-1, 1, 32),
        np.arange(32) - 16.0,
        rng.normal(size=32) * 2e4,
        rng.normal(size=32) * 1e-7,
    ]
    rows += list(rng.normal(size=(22, 32)) * 0.02)
    return np.array(rows, dtype=np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the file to write")
    arguments = parser.parse_args()
    tensors = {}
    rng = np.random.default_rng(SEED)
    with np.errstate(over="ignore"):
        for name in HALVES:
            blocks = golden_blocks(name, rng)
            tensors[f"{name.lower()}.blocks"] = blocks
            tensors[f"{name.lower()}.weights"] = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])
    tensors["weights"] = golden_weights(rng)
    with np.errstate(over="ignore"):
        for name in QUANTIZED:
            quantized = gguf.quantize(tensors["weights"], gguf.GGMLQuantizationType[name])
            tensors[f"{name.lower()}.quantized"] = quantized
    save_file(tensors, arguments.out)


if __name__ == "__main__":
    main()
