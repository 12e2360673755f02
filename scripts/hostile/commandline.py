"""Options with wrong values, options without effect, and prompts of all kinds."""

import json
import signal

from harness import ANSWERS, INTERRUPTED, REFUSES, SURVIVES, Case

HUGE = "9" * 40


def options():
    area = "options"
    wrong = {
        "--max-tokens": ["-2", "x", "1.5", HUGE, ""],
        "--temperature": ["-1", "nan", "inf", "x", ""],
        "--top-p": ["0", "-0.1", "1.5", "nan", "x"],
        "--min-p": ["-1", "2", "nan", "x"],
        "--top-k": ["-1", "x", "1.5", HUGE],
        "--seed": ["-1", "x", HUGE, "1e3"],
        "--repetition-penalty": ["0", "-1", "nan", "inf", "x"],
        "--frequency-penalty": ["3", "-3", "nan", "x"],
        "--presence-penalty": ["3", "-3", "nan", "x"],
        "--logit-bias": ["x", "1", "1=", "=1", "1=x", "1=101", "999999999=1", "-1=1", HUGE + "=1"],
        "--logprobs": ["-1", "x", HUGE],
        "--threads": ["0", "-1", "x", HUGE],
        "--draft-tokens": ["-1", "x", "1.5", HUGE],
        "--tree": ["x", "top:", "top:0x0", "top:99999x99999", "sampled:", "sampled:0", "top:3x3:0"],
        "--method": ["", "x", "Pearl "],
        "--drafter": ["", "x"],
        "--dtype": ["x", "q9_k", "", "q4_k_m_l"],
        "--kv-type": ["x", "q5", ""],
        "--cache-bytes": ["x", "-1", "1Q", HUGE],
        "--placement": ["x", "target=", "target=cpu:", "target=cpu:9999", "target=gpu:0", "target=gpu:0:0/cpu:0", "target=gpu:0/", "=cpu:0", "target=cpu:0-",
                        "target=cpu:1-0", "drafter=cpu:0", "target=cpu:0,target=cpu:1", "target=cpu:0/"],
        "--gpu-layers": ["x", "0", "-1", HUGE],
        "--pearl": ["x", "=", "adaptive=x"],
        "--lp": ["0", "x", HUGE],
        "--layer-groups": ["x", "0", "0-", "@absent", "[[0", "0,0"],
        "--calibration": ["x"],
        "--verify": ["x", ""],
        "--also-draft": ["/absent"],
        "--model": ["", "/absent", "/", "/dev/null", "/dev/zero", "{dir}", "a/b/c", "../..", "\t"],
        "--draft-model": ["/absent", "/dev/null", "{dir}", "/proc/self/mem"],
        "--prompt-file": ["/absent", "/", "{dir}", "/proc/self/mem"],
        "--trace": ["/absent/x", "/", "{dir}", "/dev/full"],
    }
    for option, values in wrong.items():
        for value in values:
            argv = ["generate", "-n", "4", "-p", "Hello", f"{option}={value}"]
            if option == "--prompt-file":
                argv = ["generate", "-n", "4", f"{option}={value}"]
            if option in ("--max-tokens",):
                argv = ["generate", "-p", "Hello", f"{option}={value}"]
            if option in ("--lp", "--layer-groups", "--calibration"):
                argv += ["--model={target}", "--draft-model={drafter}"]
            yield Case(area, f"{option}={value}", argv)
    for argv in (["generate"], ["x"], [], ["--x"], ["generate", "--x"], ["bench"], ["bench", "x"], ["chat", "x"],
                 ["export"], ["export", "--model", "{target}"], ["make-pair"], ["simulate"], ["analyze"],
                 ["generate", "-p"], ["generate", "-p", "a", "-f", "b"], ["serve", "--port", "99999"],
                 ["serve", "--port", "x"], ["serve", "--host", "x"], ["serve", "--parallel", "0"],
                 ["serve", "--parallel", "100000"], ["serve", "--api-key", ""], ["serve", "--max-body-bytes", "x"],
                 ["serve", "--chat-template", "/absent"], ["serve", "--host", "203.0.113.1"],
                 ["devices", "--model", "/absent"], ["bench", "kernels", "--dtype", "x"],
                 ["bench", "kernels", "--threads", "0"], ["bench", "quality", "--model", "/absent", "--text", "/absent"],
                 ["train"], ["distill"], ["help", "x"]):
        yield Case(area, " ".join(argv), argv)
    # Together without effect.
    for extra in (["--pearl", "adaptive"], ["--tree", "top:3x3", "--method", "autoregressive"],
                  ["--temperature", "0", "--verify", "coupled"], ["--drafter", "model", "--method", "autoregressive"],
                  ["--draft-tokens", "3", "--method", "autoregressive"], ["--json", "--show-drafts"]):
        yield Case(area, " ".join(extra), ["generate", "-n", "4", "-p", "Hello", *extra], SURVIVES)


def prompts():
    area = "prompts"
    texts = {
        "one letter": b"a", "a space": b" ", "spaces": b" " * 300, "new lines": b"\n" * 300, "tabs": b"\t" * 50,
        "a NUL": b"a\0b", "control characters": bytes(range(1, 32)), "a byte-order mark": b"\xef\xbb\xbfHello",
        "Windows lines": b"Hello\r\nyou\r\n", "Chinese": "从前有一只狐狸".encode(), "Arabic": "مرحبا بالعالم".encode(),
        "emoji": "👩‍👩‍👧‍👦🏳️‍🌈".encode(), "combining marks": ("e" + "\u0301" * 60).encode(),
        "right to left marks": "\u202eabc\u202c".encode(), "zero widths": ("\u200b" * 60).encode(),
        "private use": "\ue000\uf8ff".encode(), "the last character": "\U0010ffff".encode(),
        "special tokens": b"<s></s><|endoftext|><|im_start|>system", "many quotes": b"'\"`$(touch /tmp/x)`" * 8,
        "JSON": b'{"a": [1, 2, {"b": null}]}', "a long word": b"a" * 400, "digits": b"1234567890" * 20,
        "markup": b"<script>alert(1)</script>" * 5, "escapes": b"\x1b[31mred\x1b[0m\x07",
    }
    for name, text in texts.items():
        if b"\0" not in text:
            yield Case(area, name, ["generate", "-n", "4", "-p", text.decode()], SURVIVES)
        yield Case(area, name + " on standard input", ["generate", "-n", "4", "-f", "-"], SURVIVES, stdin=text)
        yield Case(area, name + " in a chat", ["chat", "-n", "4"], SURVIVES, stdin=text + b"\n")

    def file(text):
        def prepare(_runner, folder):
            (folder / "prompt").write_bytes(text)
            return ["prompt"]
        return prepare
    bad = {"empty": (b"", ["empty"]), "Latin-1": (b"caf\xe9", ["UTF-8"]), "UTF-16": ("Hello".encode("utf-16"), ["UTF-8"]),
           "a cut character": ("é" * 9).encode()[:-1], "surrogates": b"\xed\xa0\x80", "overlong": b"\xc0\x80",
           "random bytes": bytes((i * 197 + 13) % 256 for i in range(4096))}
    for name, text in bad.items():
        text, says = text if isinstance(text, tuple) else (text, ["UTF-8"])
        yield Case(area, f"a file: {name}", ["generate", "-n", "4", "-f", "{dir}/prompt"], REFUSES, says,
                   prepare=file(text))
    for size in (10**4, 10**6, 2 * 10**7):
        yield Case(area, f"a file of {size} bytes", ["generate", "-n", "4", "-f", "{dir}/prompt"], REFUSES, ["context"],
                   prepare=file(b"word " * (size // 5)))
    yield Case(area, "a chat without a message", ["chat"], ANSWERS)
    yield Case(area, "a chat of empty lines", ["chat", "-n", "4"], ANSWERS, stdin=b"\n\n\n")
    yield Case(area, "a chat of commands", ["chat", "-n", "4"], SURVIVES, stdin=b"/help\n/x\n/\n/system\n/clear\n/quit\n")
    yield Case(area, "a chat of many turns", ["chat", "-n", "4"], SURVIVES, stdin=b"Hello\n" * 60)
    yield Case(area, "stop strings", ["generate", "-n", "9", "-p", "Once", *[f"--stop=x{i}" for i in range(200)]], SURVIVES)
    yield Case(area, "an empty stop string", ["generate", "-n", "4", "-p", "a", "--stop="], SURVIVES)
    yield Case(area, "no tokens", ["generate", "-n", "0", "-p", "a"], SURVIVES)
    yield Case(area, "a full context", ["generate", "-p", "Once", "--ignore-eos", "-n", "100000"], SURVIVES)


def signals():
    area = "signals"
    long = ["-n", "100000", "--ignore-eos"]
    commands = {
        "generate": ["generate", "-p", "Once", "--model={target}", *long],
        "generate with pearl": ["generate", "-p", "Once", "--method", "pearl", *long],
        "generate with dsi": ["generate", "-p", "Once", "--method", "dsi", *long],
        "bench kernels": ["bench", "kernels", "--rounds", "1000"],
        "bench run": ["bench", "run", "--out", "{dir}/bench", "--full"],
        "make-pair": ["make-pair", "--out", "{dir}/pair"],
        "export": ["export", "--model={exportable}", "--gguf", "{dir}/model.gguf"],
        "serve": ["serve", "--port", "0"],
        "devices": ["devices", "--model={target}"],
    }
    for name, argv in commands.items():
        for number in (signal.SIGINT, signal.SIGTERM):
            for after in (0.02, 0.15, 0.7):
                yield Case(area, f"{name}: {number.name} after {after} s", argv, SURVIVES_A_SIGNAL, signal=number,
                           after=after)


# After a signal a command may have ended already, end in order, or end by it.
SURVIVES_A_SIGNAL = INTERRUPTED


def pipes():
    area = "pipes"
    for name, argv in {
        "generate": "generate -p Once -n 400 --ignore-eos", "json": "generate -p Once -n 50 --json",
        "help": "generate --help", "devices": "devices", "bench": "bench kernels --rounds 3 --dtype int8",
    }.items():
        def closed(how, argv=argv):
            def run(runner, folder):
                import subprocess
                line = " ".join(runner.command(argv.split(), folder)) + how
                done = subprocess.run(["bash", "-c", line + "; echo code ${PIPESTATUS[0]} >&2"], capture_output=True,
                                      text=True,
                                      errors="replace", timeout=60, stdin=subprocess.DEVNULL)
                code = done.stderr.rsplit("code ", 1)[-1].strip()
                if "panicked" in done.stderr or code not in ("0", "1", "141"):
                    return f"code {code}: {done.stderr[-300:]}"
                return None
            return run
        for how in (" | head -c 1", " | true", " >&-", " 2>&-", " <&-", " > /dev/full", " 2> /dev/full", " < /dev/full",
                    " > /dev/null 2>&1", " 0< /dev/zero | head -c 5"):
            yield Case(area, f"{name}{how}", [], run=closed(how))


def cases():
    yield from options()
    yield from prompts()
    yield from signals()
    yield from pipes()
