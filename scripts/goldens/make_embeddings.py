"""Creates tiny random models for embeddings, with the embeddings that sentence-transformers gives.

Each folder is as sentence-transformers saves it, with a golden.json: texts, and their embeddings of
length 1, from computations in f32. One is also a GGUF file, by the rules of llama.cpp.
"""

import argparse
import json
import string
from pathlib import Path

import gguf
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "a",
    "Embeddings of texts, in one pass!",
    "Çà et là: naïve 日本",
    "",
]
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}

# The folder, the family, the pooling, and how much of a text is read, if not all.
MODELS = [
    ("bert-mean", "bert", "mean", 24),
    ("bert-cls", "bert", "cls", None),
    ("qwen3-last", "qwen3", "lasttoken", None),
]


def word_pieces():
    letters = string.ascii_lowercase + string.digits + string.punctuation
    words = ["the", "quick", "##ing", "##s", "embed", "##ding", "of", "text", "one", "pass"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = special + list(letters) + ["##" + letter for letter in letters] + words
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **names)


def byte_pairs():
    end = "<|endoftext|>"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*alphabet, "th", "the", end])}
    tokenizer = Tokenizer(models.BPE(vocab, [("t", "h"), ("th", "e")]))
    tokenizer.add_special_tokens([end])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, vocab[end])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token=end, padding_side="left"
    )


def make(folder, family, pooling, most_tokens):
    torch.manual_seed(len(folder.name))
    if family == "bert":
        tokenizer = word_pieces()
        config = BertConfig(
            vocab_size=len(tokenizer),
            num_attention_heads=2,
            max_position_embeddings=64,
            initializer_range=0.3,
            **SIZES,
        )
        model = BertModel(config)
    else:
        tokenizer = byte_pairs()
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=128,
            initializer_range=0.3,
            tie_word_embeddings=True,
            **SIZES,
        )
        model = Qwen3Model(config)
    for name, parameter in model.named_parameters():
        if "norm" in name.lower() or name.endswith("bias"):
            torch.nn.init.normal_(parameter, float("weight" in name), 0.1)
    parts = folder / "parts"
    model.save_pretrained(parts)
    tokenizer.save_pretrained(parts)
    transformer = Transformer(str(parts), max_seq_length=most_tokens)
    whole = SentenceTransformer(
        modules=[transformer, Pooling(config.hidden_size, pooling_mode=pooling), Normalize()],
        device="cpu",
    )
    whole.save(str(folder), create_model_card=False)
    texts = TEXTS if family == "bert" else TEXTS[:-1]
    embeddings = [whole.encode([text])[0].tolist() for text in texts]
    golden = {"texts": texts, "embeddings": embeddings}
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")
    for file in parts.iterdir():
        file.unlink()
    parts.rmdir()


# The names of a BERT's tensors in GGUF files.
GGUF_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer": "blk",
    "attention.output.LayerNorm": "attn_output_norm",
    "attention.output.dense": "attn_output",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "intermediate.dense": "ffn_up",
    "output.LayerNorm": "layer_output_norm",
    "output.dense": "ffn_down",
}


def write_gguf(folder):
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(folder.with_suffix(".gguf"), "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    writer.add_tokenizer_model("bert")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    pieces = [piece if piece in special else piece[2:] if piece[:2] == "##" else "\u2581" + piece
              for piece in sorted(vocab, key=vocab.get)]
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece in special else 1 for piece in pieces])
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_bos_token_id(vocab["[CLS]"])
    writer.add_sep_token_id(vocab["[SEP]"])
    writer.add_unk_token_id(vocab["[UNK]"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.startswith("pooler.") and name != "embeddings.position_ids":
            for old, new in GGUF_NAMES.items():
                name = name.replace(old, new)
            writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    for name, *options in MODELS:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, *options)
        if name == "bert-cls":
            write_gguf(folder)
        print(folder)


if __name__ == "__main__":
    main()
