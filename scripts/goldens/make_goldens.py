#!/usr/bin/env python3
"""Make golden greedy texts with an independent peer implementation.

The peer is Hugging Face `transformers` on CPU `torch` in float32. For each
small checkpoint this script writes one JSON file. It contains the token ids of
greedy decoding for several prompts, and the ids of several strings according
to the checkpoint's tokenizer. Tests of forerun compare its output with these
files.

Usage:

    python make_goldens.py --models DIR --out DIR

`--models` is a folder that contains the checkpoint folders `tinystories656k`,
`stories260K` and `stories280K-b`. README.md in the same folder explains the
fields of the output.
"""

import argparse
import hashlib
import json
import struct
import sys
from pathlib import Path

import numpy
import tokenizers
import torch
import transformers

SCRIPT_PATH = "scripts/goldens/make_goldens.py"

# The number of generated tokens per prompt. End-of-text tokens do not stop it.
NEW_TOKENS = 200

# The number of largest logits of the first step that are recorded.
FIRST_STEP_TOP = 8

# The maximum difference of any logit between the cached token-by-token run
# and one uncached run over the whole sequence.
CACHE_TOLERANCE = 1e-3

# If the two largest logits of a step are closer than this, the step is
# recorded as a near tie: another float32 implementation may choose the other
# token.
NEAR_TIE = 1e-3

BOS_ID = 1

LONG_PROMPT = (
    "Once upon a time, there was a little girl named Lily. She loved to play "
    "outside in the park with her friends. One day, she saw a big red ball "
    "under a tree. \"Can I play with it?\" she asked her mom. Her mom smiled "
    "and said, \"Yes, but be very careful, the road is close.\" Lily was so "
    "happy that she ran to the tree. The sun was warm, the grass was green, "
    "and a small brown dog looked at her. Then"
)

# The context of stories280K-b has 256 tokens, so 56 are left for a prompt.
MEDIUM_PROMPT = (
    "Once upon a time, there was a little girl named Lily. She loved to play "
    "outside in the park with her friends. One day, she saw a big red ball. "
    "\"Can I"
)

# The prompts for every checkpoint: (name, text).
COMMON_PROMPTS = [
    ("once", "Once upon a time"),
    ("bos_only", ""),
    ("one_word", "Lily"),
    ("quotes", "\"Where is my cat?\" asked Tom; \"I don't know,\" said Mom."),
    ("accent", "Zo\u00e9 went to the caf\u00e9 and"),
    ("emoji", "The cat \U0001f431 saw a bird \U0001f426. It"),
    ("lines", "Max was sad.\n\nHis mom said,"),
]

# The strings that are encoded with every tokenizer.
COMMON_STRINGS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "MiXeD CaSe wOrDs and ALL CAPS",
    "In 1984 there were 365 days, 7.5% of them on 29/02/2024.",
    "two  spaces,   three spaces,    four",
    " one leading space",
    "   three leading spaces",
    "one trailing space ",
    "two trailing spaces  ",
    "line one\nline two\n\nline four\n",
    "\n",
    "tab\tand two\t\ttabs",
    "carriage\r\nreturn",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u00f1and\u00fa",
    "cafe\u0301 with a combining accent",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u65e5\u672c\u8a9e",
    "\U0001f600 and \U0001f469\u200d\U0001f467 and \u2764\ufe0f",
    "\"double\" and 'single' and \u201ccurly\u201d and it\u2019s",
    "<s>",
    "</s> and <unk> inside text",
    "<0x41>",
    "no\u00a0break space and \u2581 lower one eighth block",
    "a_b-c+d=e*(f)[g]{h}|i\\j/k~l`m^n@o#p",
    "Once upon a time there was a very happy little friend named Timmy.",
    "supercalifragilisticexpialidocious",
]

# The special tokens of tinystories656k have another form.
TINYSTORIES_STRINGS = COMMON_STRINGS + [
    "<|end_story|>",
    "The end.<|end_story|>",
    "The end. <|end_story|> Next",
]


def sha256_of_file(path):
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def significant(value):
    """Round to seven significant digits, about the precision of float32."""
    return float(f"{float(value):.7g}")


class HuggingFaceTokenizer:
    """The tokenizer that a `tokenizer.json` file describes."""

    def __init__(self, path):
        self.tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def encode(self, text):
        """Return the ids of a text, with the tokens its template adds."""
        return self.tokenizer.encode(text, add_special_tokens=True).ids

    def decode(self, token_ids):
        """Return the text of a whole sequence without special tokens."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def decode_continuation(self, prompt_ids, generated_ids):
        """Return the text of the generated ids alone.

        The decoder of `tokenizer.json` strips one leading space of any text,
        here of the first generated token.
        """
        del prompt_ids
        return self.decode(generated_ids)


class LlamaCTokenizer:
    """The tokenizer of llama2.c: scored pieces and byte fallback.

    The file holds a 32-bit integer (the length of the longest piece) and
    then for each token a 32-bit float score, a 32-bit integer length and the
    bytes of the piece. Ids 0, 1 and 2 are unknown, BOS and EOS; the ids 3 to
    258 are the 256 bytes, written `<0x00>` to `<0xFF>`.
    """

    FIRST_BYTE_ID = 3

    def __init__(self, path):
        data = Path(path).read_bytes()
        self.pieces = []
        self.scores = []
        offset = 4
        while offset < len(data):
            score, length = struct.unpack_from("<fi", data, offset)
            offset += 8
            self.pieces.append(data[offset:offset + length])
            self.scores.append(score)
            offset += length
        if offset != len(data):
            raise ValueError(f"{path} ends inside a token")
        self.id_of_piece = {}
        for token_id, piece in enumerate(self.pieces):
            if piece in self.id_of_piece:
                raise ValueError(f"{path} has the piece {piece!r} twice")
            self.id_of_piece[piece] = token_id
        self.byte_of_id = {}
        for byte in range(256):
            token_id = self.FIRST_BYTE_ID + byte
            if self.pieces[token_id] != b"<0x%02X>" % byte:
                raise ValueError(f"token {token_id} is not byte {byte}")
            self.byte_of_id[token_id] = byte

    def encode(self, text):
        """Return BOS and the ids of a text.

        A non-empty text starts with one space token. Each code point becomes
        its own piece or, if there is none, its UTF-8 bytes. Then adjacent
        pairs are merged, the pair with the best score of the merged piece
        first (the leftmost on ties), until no pair merges to a piece.
        """
        symbols = [self.id_of_piece[b" "]] if text else []
        for character in text:
            encoded = character.encode("utf-8")
            if encoded in self.id_of_piece:
                symbols.append(self.id_of_piece[encoded])
            else:
                symbols.extend(self.FIRST_BYTE_ID + byte for byte in encoded)
        while True:
            candidates = []
            for position, (left, right) in enumerate(zip(symbols, symbols[1:])):
                joined = self.id_of_piece.get(
                    self.pieces[left] + self.pieces[right])
                if joined is not None:
                    candidates.append(
                        (-self.scores[joined], position, joined))
            if not candidates:
                return [BOS_ID] + symbols
            _, position, joined = min(candidates)
            symbols[position:position + 2] = [joined]

    def decode(self, token_ids):
        """Return the text of a sequence that starts with BOS.

        The starting BOS adds nothing to the text.
        """
        if token_ids[0] != BOS_ID:
            raise ValueError("the sequence does not start with BOS")
        return self.decode_continuation(token_ids[:1], token_ids[1:])

    def decode_continuation(self, prompt_ids, generated_ids):
        """Return the text that the generated ids add after the prompt.

        Directly after BOS a piece loses one leading space. A byte token adds
        its byte. Any other token, including BOS and EOS, adds its piece.
        """
        text = bytearray()
        previous = prompt_ids[-1]
        for token_id in generated_ids:
            piece = self.pieces[token_id]
            if token_id in self.byte_of_id:
                text.append(self.byte_of_id[token_id])
            elif previous == BOS_ID and piece.startswith(b" "):
                text += piece[1:]
            else:
                text += piece
            previous = token_id
        return bytes(text).decode("utf-8", errors="replace")


def half_split_rows(weight, head_count):
    """Reorder the rows of a query or key weight for transformers' RoPE.

    In llama2.c, rows 2i and 2i+1 of each head form a rotary pair. In
    transformers, rows i and i + head_size/2 do.
    """
    rows, columns = weight.shape
    head_size = rows // head_count
    pairs = weight.reshape(head_count, head_size // 2, 2, columns)
    return pairs.transpose(0, 2, 1, 3).reshape(rows, columns)


def load_llama_c_model(path):
    """Convert a llama2.c version 0 file to a `LlamaForCausalLM`."""
    data = Path(path).read_bytes()
    (dim, hidden_dim, layer_count, head_count, kv_head_count, vocab_size,
     context) = struct.unpack_from("<7i", data)
    tied = vocab_size > 0
    vocab_size = abs(vocab_size)
    head_size = dim // head_count
    kv_dim = head_size * kv_head_count
    floats = numpy.frombuffer(data, dtype="<f4", offset=28)
    position = 0

    def take(*shape):
        """Return the next tensor of the file."""
        nonlocal position
        count = int(numpy.prod(shape))
        tensor = floats[position:position + count].reshape(shape)
        position += count
        return tensor

    embedding = take(vocab_size, dim)
    attention_norm = take(layer_count, dim)
    wq = take(layer_count, dim, dim)
    wk = take(layer_count, kv_dim, dim)
    wv = take(layer_count, kv_dim, dim)
    wo = take(layer_count, dim, dim)
    ffn_norm = take(layer_count, dim)
    w1 = take(layer_count, hidden_dim, dim)
    w2 = take(layer_count, dim, hidden_dim)
    w3 = take(layer_count, hidden_dim, dim)
    final_norm = take(dim)
    take(2, context, head_size // 2)  # The two rotary tables, not used.
    head = embedding if tied else take(vocab_size, dim)
    if position != len(floats):
        raise ValueError(
            f"{path} has {len(floats)} values where {position} were expected")

    state = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": final_norm,
        "lm_head.weight": head,
    }
    for layer in range(layer_count):
        prefix = f"model.layers.{layer}."
        state |= {
            prefix + "input_layernorm.weight": attention_norm[layer],
            prefix + "self_attn.q_proj.weight":
                half_split_rows(wq[layer], head_count),
            prefix + "self_attn.k_proj.weight":
                half_split_rows(wk[layer], kv_head_count),
            prefix + "self_attn.v_proj.weight": wv[layer],
            prefix + "self_attn.o_proj.weight": wo[layer],
            prefix + "post_attention_layernorm.weight": ffn_norm[layer],
            prefix + "mlp.gate_proj.weight": w1[layer],
            prefix + "mlp.down_proj.weight": w2[layer],
            prefix + "mlp.up_proj.weight": w3[layer],
        }

    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=dim,
        intermediate_size=hidden_dim,
        num_hidden_layers=layer_count,
        num_attention_heads=head_count,
        num_key_value_heads=kv_head_count,
        max_position_embeddings=context,
        hidden_act="silu",
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=tied,
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=BOS_ID,
        eos_token_id=2,
        attn_implementation="eager",
        dtype="float32",
    )
    model = transformers.LlamaForCausalLM(config).to(torch.float32)
    model.load_state_dict(
        {name: torch.from_numpy(numpy.array(tensor, dtype=numpy.float32))
         for name, tensor in state.items()},
        strict=True)
    return model.eval()


def load_hugging_face_model(path):
    """Load a Hugging Face model folder in float32."""
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        local_files_only=True, output_loading_info=True)
    problems = {name: keys for name, keys in loading.items() if keys}
    if problems:
        raise ValueError(f"{path} did not load cleanly: {problems}")
    if model.config.tie_word_embeddings:
        embedding = model.get_input_embeddings().weight
        if not torch.equal(embedding, model.get_output_embeddings().weight):
            raise ValueError(f"{path}: the head is not the embedding")
    return model.eval()


@torch.no_grad()
def greedy(model, prompt_ids):
    """Continue a prompt with the most probable token, NEW_TOKENS times.

    Return the new ids and the logits of each step. The loop uses the cache.
    Afterwards one run without the cache over the whole sequence must give
    nearly the same logits.
    """
    context = model.config.max_position_embeddings
    if len(prompt_ids) + NEW_TOKENS > context:
        raise ValueError(
            f"a prompt of {len(prompt_ids)} tokens and {NEW_TOKENS} new ones "
            f"do not fit in the context of {context} tokens")
    cache = None
    inputs = torch.tensor([prompt_ids])
    generated_ids = []
    steps = []
    for _ in range(NEW_TOKENS):
        output = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits = output.logits[0, -1]
        token_id = int(torch.argmax(logits))
        steps.append(logits)
        generated_ids.append(token_id)
        inputs = torch.tensor([[token_id]])
    logits = torch.stack(steps)

    whole = torch.tensor([prompt_ids + generated_ids[:-1]])
    uncached = model(input_ids=whole, use_cache=False).logits[0]
    uncached = uncached[len(prompt_ids) - 1:]
    difference = float((uncached - logits).abs().max())
    if difference > CACHE_TOLERANCE:
        raise ValueError(
            f"the cache changes logits by {difference}, more than "
            f"{CACHE_TOLERANCE}")
    return generated_ids, logits


def make_prompt_record(model, tokenizer, name, prompt):
    """Return the golden record of one prompt."""
    prompt_ids = tokenizer.encode(prompt)
    if prompt_ids[0] != BOS_ID:
        raise ValueError(f"the prompt {name} does not start with BOS")
    generated_ids, logits = greedy(model, prompt_ids)
    largest = torch.topk(logits, 2, dim=-1)
    margins = largest.values[:, 0] - largest.values[:, 1]
    near_ties = [
        {"step": step, "runner_up_id": int(largest.indices[step, 1]),
         "margin": significant(margin)}
        for step, margin in enumerate(margins) if margin < NEAR_TIE]
    top = torch.topk(logits[0], FIRST_STEP_TOP)
    return {
        "name": name,
        "prompt": prompt,
        "prompt_ids": prompt_ids,
        "generated_ids": generated_ids,
        "generated_text":
            tokenizer.decode_continuation(prompt_ids, generated_ids),
        "full_text": tokenizer.decode(prompt_ids + generated_ids),
        "min_margin": significant(margins.min()),
        "min_margin_step": int(margins.argmin()),
        "near_ties": near_ties,
        "first_step_top_ids": top.indices.tolist(),
        "first_step_top_logits":
            [significant(value) for value in top.values],
    }


def make_encoding_record(tokenizer, text):
    """Return the golden record of one encoded string."""
    token_ids = tokenizer.encode(text)
    return {
        "text": text,
        "ids": token_ids,
        "decoded": tokenizer.decode(token_ids),
    }


def make_golden(name, root, weights, tokenizer_file, model, tokenizer,
                prompts, strings):
    """Return the whole golden document of one checkpoint."""
    config = model.config
    header = {
        "checkpoint": name,
        "peer": "transformers",
        "peer_version": transformers.__version__,
        "torch_version": torch.__version__.split("+")[0],
        "tokenizers_version": tokenizers.__version__,
        "script": SCRIPT_PATH,
        "weights_file": weights,
        "weights_sha256": sha256_of_file(root / weights),
        "tokenizer_file": tokenizer_file,
        "tokenizer_sha256": sha256_of_file(root / tokenizer_file),
        "dtype": "float32",
        "device": "cpu",
        "decoding": "greedy, no stop at end-of-text tokens",
        "new_tokens": NEW_TOKENS,
        "near_tie_margin": NEAR_TIE,
        "bos_id": BOS_ID,
        "context": config.max_position_embeddings,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_parameters["rope_theta"],
        "tied_head": config.tie_word_embeddings,
    }
    return {
        "header": header,
        "prompts": [make_prompt_record(model, tokenizer, prompt_name, prompt)
                    for prompt_name, prompt in prompts],
        "encodings": [make_encoding_record(tokenizer, text)
                      for text in strings],
    }


def to_json(golden):
    """Return a document as ASCII JSON, a header field or record per line."""
    def one_line(value):
        return json.dumps(value, separators=(",", ":"))

    header = ",\n".join(
        f"    {json.dumps(key)}: {json.dumps(value)}"
        for key, value in golden["header"].items())
    parts = ['  "header": {\n' + header + "\n  }"]
    for section in ("prompts", "encodings"):
        records = ",\n".join(
            "    " + one_line(record) for record in golden[section])
        parts.append(f'  "{section}": [\n{records}\n  ]')
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    if json.loads(text) != golden:
        raise ValueError("the document changes when its JSON is parsed")
    return text


def make_tinystories(root):
    """Return the golden document of tinystories656k."""
    name, weights, tokenizer_file = (
        "tinystories656k", "model.safetensors", "tokenizer.json")
    folder = root / name
    return make_golden(
        name, folder, weights, tokenizer_file,
        load_hugging_face_model(folder),
        HuggingFaceTokenizer(folder / tokenizer_file),
        COMMON_PROMPTS + [("long", LONG_PROMPT)], TINYSTORIES_STRINGS)


def make_llama_c(root, name, weights, long_prompt):
    """Return the golden document of a llama2.c checkpoint."""
    folder = root / name
    tokenizer_file = "tok512.bin"
    return make_golden(
        name, folder, weights, tokenizer_file,
        load_llama_c_model(folder / weights),
        LlamaCTokenizer(folder / tokenizer_file),
        COMMON_PROMPTS + [long_prompt], COMMON_STRINGS)


def main():
    """Make the golden files of the three checkpoints."""
    parser = argparse.ArgumentParser(
        description="Make golden greedy texts with Hugging Face transformers.")
    parser.add_argument(
        "--models", type=Path, required=True, metavar="DIR",
        help="folder that contains the checkpoint folders")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR",
        help="output folder for the <checkpoint>.json files")
    arguments = parser.parse_args()

    transformers.utils.logging.disable_progress_bar()
    # One thread, so that sums always have the same order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    goldens = [
        make_tinystories(arguments.models),
        make_llama_c(arguments.models, "stories260K", "stories260K.bin",
                     ("long", LONG_PROMPT)),
        make_llama_c(arguments.models, "stories280K-b", "model.bin",
                     ("medium", MEDIUM_PROMPT)),
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for golden in goldens:
        path = arguments.out / f"{golden['header']['checkpoint']}.json"
        path.write_bytes(to_json(golden).encode("ascii"))
        smallest = min(record["min_margin"] for record in golden["prompts"])
        print(f"{path}: {len(golden['prompts'])} prompts, "
              f"{len(golden['encodings'])} encodings, "
              f"smallest margin {smallest}")
        for record in golden["prompts"]:
            for near_tie in record["near_ties"]:
                print(f"  near tie in {record['name']}: {near_tie}")


if __name__ == "__main__":
    sys.exit(main())
