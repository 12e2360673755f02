"""Broken checkpoints, tokenizers, templates and GGUF files; outputs that cannot be written; too little memory."""

import json
import os
import pathlib
import shutil
import stat
import struct
import subprocess
import threading

from harness import ANSWERS, REFUSES, SURVIVES, Case

RUN = ["generate", "-n", "4", "-p", "Once upon", "--model={dir}/model"]


def model(change, kind="hub"):
    """Copies a checkpoint to {dir}/model, and changes it."""
    def prepare(runner, folder):
        copy = folder / "model"
        shutil.copytree(runner.models[kind], copy)
        for path in copy.rglob("*"):
            path.chmod(0o644)
        change(copy)
        return [str(path.relative_to(folder)) for path in copy.rglob("*") if path.is_file() and not path.is_symlink()]
    return prepare


def edit(name, change):
    def edited(folder):
        value = json.loads((folder / name).read_text())
        value = change(value) or value
        (folder / name).write_text(json.dumps(value))
    return edited


def put(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def header(change):
    """Changes the header of the safetensors file."""
    def edited(folder):
        data = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        value = json.loads(data[8:8 + size])
        tensors = [name for name in value if name != "__metadata__"]
        change(value, tensors)
        text = json.dumps(value).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return edited


def safetensors():
    area = "safetensors"
    path = "model.safetensors"

    def cut(at):
        return lambda folder: os.truncate(folder / path, at)

    def raw(at, data):
        def edited(folder):
            with open(folder / path, "r+b") as file:
                file.seek(at)
                file.write(data)
        return edited
    for size in (0, 1, 7, 8, 9, 100, 3000, 100_000, 2_000_000):
        yield Case(area, f"cut after {size} bytes", RUN, prepare=model(cut(size)))
    for length in (0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1):
        yield Case(area, f"a header of {length} bytes", RUN, prepare=model(raw(0, struct.pack("<Q", length))))
    yield Case(area, "bytes of a header", RUN, prepare=model(raw(8, b"\xff" * 40)))
    yield Case(area, "a picture", RUN, prepare=model(put(path, b"\x89PNG\r\n\x1a\n" + b"\0" * 500)))
    yield Case(area, "a web page", RUN, prepare=model(put(path, b"<!DOCTYPE html><html>not found</html>")))
    yield Case(area, "a pointer of Git LFS", RUN, prepare=model(put(
        path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")))
    yield Case(area, "nothing but a file", RUN, prepare=model(lambda folder: (folder / path).unlink()))
    yield Case(area, "a folder", RUN, prepare=model(lambda folder: ((folder / path).unlink(), (folder / path).mkdir())))
    yield Case(area, "a circle of links", RUN, prepare=model(
        lambda folder: ((folder / path).unlink(), (folder / path).symlink_to(path))))
    changes = {
        "a tensor is missing": lambda v, t: v.pop(t[0]), "the last tensor is missing": lambda v, t: v.pop(t[-1]),
        "a wrong shape": lambda v, t: v[t[3]].update(shape=[1, 1]),
        "a shape of no dimensions": lambda v, t: v[t[3]].update(shape=[]),
        "a huge shape": lambda v, t: v[t[3]].update(shape=[2**40, 2**40]),
        "a negative shape": lambda v, t: v[t[3]].update(shape=[-1, 4]),
        "a shape of text": lambda v, t: v[t[3]].update(shape=["a"]),
        "an unknown type": lambda v, t: v[t[3]].update(dtype="F12"),
        "integers": lambda v, t: v[t[3]].update(dtype="I32"), "half of the bytes": lambda v, t: v[t[3]].update(dtype="F16"),
        "offsets backwards": lambda v, t: v[t[3]].update(data_offsets=[100, 0]),
        "offsets after the end": lambda v, t: v[t[3]].update(data_offsets=[0, 2**50]),
        "the same bytes twice": lambda v, t: v[t[3]].update(data_offsets=v[t[4]]["data_offsets"]),
        "no offsets": lambda v, t: v[t[3]].pop("data_offsets"), "a number for a tensor": lambda v, t: v.update({t[3]: 3}),
        "another name": lambda v, t: v.update({"x" + t[3]: v.pop(t[3])}),
        "no tensors": lambda v, t: v.clear(), "metadata of numbers": lambda v, t: v.update(__metadata__={"a": 1}),
    }
    for name, change in changes.items():
        yield Case(area, name, RUN, prepare=model(header(change)))
    for name, value in {"NaN": 0x7FC00000, "infinity": 0x7F800000}.items():
        def filled(folder, value=value):
            size = (folder / path).stat().st_size
            raw(size // 2, struct.pack("<I", value) * 4000)(folder)
        yield Case(area, f"{name} among the weights", RUN, SURVIVES, prepare=model(filled))
    for number in range(20):
        def flipped(folder, number=number):
            data = bytearray((folder / path).read_bytes())
            for at in range(8 + number * 31, 3000, 401):
                data[at] ^= 1 << number % 8
            (folder / path).write_bytes(data)
        yield Case(area, f"flipped bits in the header, {number}", RUN, SURVIVES, prepare=model(flipped))
    index = "model.safetensors.index.json"
    for name, text in {"broken": "{", "empty": "{}", "of absent files": '{"weight_map": {"a": "absent.safetensors"}}',
                       "that leaves the folder": '{"weight_map": {"a": "../../../etc/passwd"}}',
                       "of numbers": '{"weight_map": {"a": 1}}'}.items():
        def indexed(folder, text=text):
            (folder / path).unlink()
            (folder / index).write_text(text)
        yield Case(area, f"an index {name}", RUN, prepare=model(indexed))


def configurations():
    area = "config.json"
    for name, text in {"empty": b"", "{}": b"{}", "[]": b"[]", "null": b"null", "cut": b'{"model_type": "lla',
                       "not JSON": b"model_type: llama", "deep": b"[" * 100_000, "a NUL": b"\0" * 10,
                       "Latin-1": b'{"model_type": "\xe9"}', "a number for all": b"7"}.items():
        yield Case(area, name, RUN, prepare=model(put("config.json", text)))
    fields = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
              "num_key_value_heads", "max_position_embeddings"]
    for field in fields:
        for value in (0, -1, 2**31, 2**63, 1.5, "x", [], True):
            yield Case(area, f"{field} = {value}", RUN, prepare=model(
                edit("config.json", lambda config, f=field, v=value: config.update({f: v}))))
    for field in ["model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]:
        yield Case(area, f"no {field}", RUN, SURVIVES, prepare=model(
            edit("config.json", lambda config, f=field: config.pop(f, None))))
    others = {
        "model_type": ["gpt2", "mamba", "", 3, None], "hidden_act": ["gelu", 3], "rms_norm_eps": [-1, "x", 1e400],
        "rope_theta": [0, -1, "x"], "rope_scaling": [{"type": "x", "factor": 2.0}, {"type": "linear", "factor": 0}, 3,
                                                     {"rope_type": "yarn"}, {"type": "linear"}],
        "head_dim": [0, 3, -2, "x"], "tie_word_embeddings": ["x", 2], "attention_bias": ["x"], "sliding_window": [0, -3, "x"],
        "quantization_config": [{"quant_method": "gptq", "bits": 4}], "logits_scaling": [8.0],
        "embedding_multiplier": [12.0], "residual_multiplier": [0.2], "attention_multiplier": [0.1],
        "eos_token_id": [-1, "x", 2**40, [[]]], "partial_rotary_factor": [0.5],
    }
    for field, values in others.items():
        for value in values:
            yield Case(area, f"{field} = {value}", RUN, SURVIVES, prepare=model(
                edit("config.json", lambda config, f=field, v=value: config.update({f: v}))))


def tokenizers():
    area = "tokenizers"
    for name, text in {"empty": b"", "{}": b"{}", "not JSON": b"x", "deep": b"[" * 100_000, "cut": b'{"version": "1.0", "mod'}.items():
        yield Case(area, name, RUN, prepare=model(put("tokenizer.json", text)))
    yield Case(area, "none", RUN, prepare=model(lambda folder: (folder / "tokenizer.json").unlink()))

    def vocabulary(change):
        return edit("tokenizer.json", lambda value: change(value["model"]))
    changes = {
        "no vocabulary": lambda m: m.pop("vocab"), "an empty vocabulary": lambda m: m.update(vocab={}),
        "negative ids": lambda m: m.update(vocab={k: -v for k, v in m["vocab"].items()}),
        "ids beyond the model": lambda m: m.update(vocab={k: v + 10**6 for k, v in m["vocab"].items()}),
        "the same id for all": lambda m: m.update(vocab={k: 1 for k in m["vocab"]}),
        "merges of unknown tokens": lambda m: m.update(merges=["zzzz qqqq"]),
        "merges of numbers": lambda m: m.update(merges=[1]), "an unknown model": lambda m: m.update(type="X"),
        "no merges": lambda m: m.update(merges=[]),
    }
    for name, change in changes.items():
        yield Case(area, name, RUN, SURVIVES, prepare=model(vocabulary(change)))
    for key in ("normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens"):
        for value in ({"type": "X"}, 3, [3]):
            yield Case(area, f"{key} = {value}", RUN, SURVIVES, prepare=model(
                edit("tokenizer.json", lambda v, k=key, x=value: v.update({k: x}))))
    yield Case(area, "a pattern that backtracks", RUN, SURVIVES, prepare=model(edit("tokenizer.json", lambda v: v.update(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}))))


def templates():
    area = "chat templates"
    texts = {
        "empty": "", "not closed": "{% if", "an unknown filter": "{{ messages | nope }}", "an unknown variable": "{{ nope.x }}",
        "a loop without end": "{% for i in range(10000000000) %}x{% endfor %}", "nested loops":
        "{% for i in range(100000) %}{% for j in range(100000) %}{{ j }}{% endfor %}{% endfor %}",
        "doubling": "{% set ns = namespace(t='x') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
        "multiplying": "{{ 'x' * 10000000000 }}", "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "division by zero": "{{ 1 / 0 }}", "an exception": "{{ raise_exception('no') }}", "padding": "{{ '%1000000000d' % 1 }}",
        "a large range": "{{ range(100000000) | list }}", "replacing": "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
        "include": "{% include '/etc/passwd' %}", "import": "{% import 'x' as x %}", "python": "{{ ''.__class__.__mro__ }}",
        "deep": "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "only spaces": "   \n", "a NUL": "a\0b",
        "binary": "\ufffd" * 300, "wrong types": "{{ messages + 1 }}",
    }
    for name, text in texts.items():
        def prepare(_runner, folder, text=text):
            (folder / "template").write_text(text)
        yield Case(area, name, ["chat", "-n", "4", "--chat-template={dir}/template"], SURVIVES, stdin=b"Hello\n",
                   prepare=prepare)


def gguf():
    area = "GGUF"
    run = ["generate", "-n", "4", "-p", "Once upon", "--model={dir}/model/model.gguf"]

    def prepared(change):
        def changed(folder):
            path = folder / "model.gguf"
            data = bytearray(path.read_bytes())
            changed = change(data)
            path.write_bytes(data if changed is None else changed)
        return model(changed, "gguf")
    for size in (0, 3, 4, 8, 16, 24, 100, 5000, 40_000, 200_000):
        yield Case(area, f"cut after {size} bytes", run, prepare=prepared(lambda d, s=size: d[:s]))
    for at, name, size in ((4, "version", 4), (8, "number of tensors", 8), (16, "number of entries", 8), (24, "length of a key", 8)):
        for value in (0, 1, 2**31 - 1, 2**32 - 1, 2**62, 2**64 - 1):
            def put_at(data, at=at, size=size, value=value):
                data[at:at + size] = (value % 2**(8 * size)).to_bytes(size, "little")
            yield Case(area, f"{name} = {value}", run, SURVIVES if value < 2 or at == 4 else REFUSES, prepare=prepared(put_at))
    for number in range(60):
        def flipped(data, number=number):
            for at in range(24 + number * 37, min(len(data), 30_000), 2_003):
                data[at] ^= 1 << number % 8
        yield Case(area, f"flipped bits, {number}", run, SURVIVES, prepare=prepared(flipped))
    yield Case(area, "a magic of another format", run, prepare=prepared(lambda d: b"GGML" + d[4:]))
    yield Case(area, "zeros", run, prepare=prepared(lambda d: bytes(len(d))))
    yield Case(area, "further bytes at the end", run, SURVIVES, prepare=prepared(lambda d: d + b"x" * 99))
    yield Case(area, "a name without an extension", ["generate", "-n", "4", "-p", "Once", "--model={dir}/model/blob"], ANSWERS,
               prepare=model(lambda folder: (folder / "model.gguf").rename(folder / "blob"), "gguf"))
    yield Case(area, "named as a part, without the metadata of one", ["generate", "-n", "4", "-p", "a", "--model={dir}/model/x-00001-of-00003.gguf"], ANSWERS,
               prepare=model(lambda folder: (folder / "model.gguf").rename(folder / "x-00001-of-00003.gguf"), "gguf"))


def llama2c():
    area = "llama2.c"
    run = ["generate", "-n", "4", "-p", "Once upon", "--model={dir}/model/stories260K.bin"]

    def prepared(change):
        def changed(folder):
            path = folder / "stories260K.bin"
            data = bytearray(path.read_bytes())
            changed = change(data)
            path.write_bytes(data if changed is None else changed)
        return model(changed, "llama2c")
    for size in (0, 4, 27, 28, 1000, 500_000):
        yield Case(area, f"cut after {size} bytes", run, prepare=prepared(lambda d, s=size: d[:s]))
    for index, name in enumerate(["dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"]):
        for value in (0, -1, 3, 2**31 - 1):
            def put_at(data, index=index, value=value):
                data[4 * index:4 * index + 4] = struct.pack("<i", value)
            yield Case(area, f"{name} = {value}", run, SURVIVES, prepare=prepared(put_at))
    yield Case(area, "no tokenizer", run, prepare=model(lambda folder: (folder / "tok512.bin").unlink(), "llama2c"))
    yield Case(area, "a cut tokenizer", run, prepare=model(lambda folder: os.truncate(folder / "tok512.bin", 900), "llama2c"))


def outputs():
    area = "outputs"
    export = ["export", "--model={exportable}", "--gguf"]

    def device(_runner, folder):
        os.mknod(folder / "full", stat.S_IFCHR | 0o666, os.makedev(1, 7))
        return ["full"]

    def link(_runner, folder):
        (folder / "real").write_text("precious")
        (folder / "model.gguf").symlink_to("real")
        return ["real"]
    yield Case(area, "a device", [*export, "{dir}/full"], prepare=device)
    yield Case(area, "a link", [*export, "{dir}/model.gguf"], SURVIVES, prepare=link,
               check=lambda _r, folder: None if (folder / "model.gguf").is_symlink() or not (folder / "real").read_text() == ""
               else "the link's file is lost")
    yield Case(area, "a folder", [*export, "{dir}"])
    yield Case(area, "an absent folder", [*export, "{dir}/a/b.gguf"], SURVIVES)
    yield Case(area, "the root", [*export, "/"])
    yield Case(area, "a name that is too long", [*export, "{dir}/" + "x" * 300])
    yield Case(area, "the model itself", ["export", "--model={dir}/model", "--gguf", "{dir}/model/model.safetensors"],
               prepare=model(lambda folder: None, "exportable"))
    yield Case(area, "a directory without write access", [*export, "/proc/x.gguf"])
    yield Case(area, "a trace to a device", ["generate", "-n", "4", "-p", "a", "--trace", "{dir}/full"], prepare=device)
    for count in (2, 3, 5):
        def together(runner, folder, count=count):
            argv = runner.command(["bench", "run", "--out", "{dir}/out", "--limit", "1", "-n", "4"], folder)
            runs = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(count)]
            errors = [run.communicate(timeout=60)[1] for run in runs]
            codes = sorted(run.returncode for run in runs)
            if any("panicked" in error for error in errors) or codes[0] != 0 or any(code not in (0, 1) for code in codes):
                return f"{codes} {errors}"
            return None
        yield Case(area, f"{count} comparisons in one folder", [], run=together)

    def small_disk(runner, folder):
        disk = folder / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", disk], capture_output=True).returncode:
            return None
        try:
            done = subprocess.run(runner.command([*export, "{dir}/disk/model.gguf"], folder), capture_output=True, text=True)
            left = os.listdir(disk)
            if done.returncode != 1 or "model.gguf" not in done.stderr or left:
                return f"{done.returncode} {done.stderr} {left}"
            return None
        finally:
            subprocess.run(["umount", disk])
    yield Case(area, "a full disk", [], run=small_disk)


def memory():
    area = "memory"
    # With less, the system cannot load the program itself.
    for megabytes in (80, 100, 120, 200, 300, 500, 1000, 4000):
        for name, argv in {
            "generate": ["generate", "-n", "4", "-p", "Hello"],
            "a checkpoint": ["generate", "-n", "4", "-p", "Hello", "--model={target}"],
            "serve": ["serve", "--port", "x"], "devices": ["devices"],
        }.items():
            yield Case(area, f"{name} in {megabytes} MB", argv, SURVIVES, memory=megabytes << 20)


def cases():
    for area in (safetensors, configurations, tokenizers, templates, gguf, llama2c, outputs, memory):
        yield from area()
