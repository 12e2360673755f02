"""Cases that a reader without knowledge of the others invented: odd environments, file systems, terminals, grammars, hubs."""

import contextlib
import fcntl
import functools
import gzip
import http.server
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import urllib.request

from files import edit, model
from harness import ANSWERS, INTERRUPTED, LIMIT, REFUSES, SURVIVES, Case
from server import healthy, post, server

NOBODY = 65534
GENERATE = ["generate", "-n", "4", "-p", "Once upon"]


def tidy(_runner, folder):
    left = [path.name for path in folder.rglob("*") if path.name.endswith(".partial")]
    return f"left behind: {left}" if left else None


def case(name, argv, expect=REFUSES, says=(), **others):
    return Case("invented", name, argv, expect, list(says), **{"check": tidy, **others})


def running(name, run):
    return Case("invented", name, [], run=run)


def put(name, data):
    """Writes {dir}/name, which must not change."""
    def prepare(_runner, folder):
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return [name]
    return prepare


def environment(folder, changes):
    env = {key: value for key, value in os.environ.items() if not key.startswith("FORERUN_")}
    env.update({"TMPDIR": str(folder), "RUST_BACKTRACE": "0", **changes})
    return {key: value for key, value in env.items() if value is not None}


def start(runner, folder, argv, env=None, before=None, **others):
    """Starts the program; in `env`, None removes a variable."""
    def prepare():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if before:
            before()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": folder, **others}
    return subprocess.Popen(runner.command(argv, folder), env=environment(folder, env or {}), preexec_fn=prepare, **pipes)


def finish(process, stdin=None, codes=(0, 1, 2, 3), says=()):
    """Waits for the end; returns what is wrong with it."""
    try:
        out, err = process.communicate(stdin, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no end after {LIMIT} s"
    return judge(process.returncode, (err or b"").decode(errors="replace"), codes, says, out)


def judge(code, err, codes=(0, 1, 2, 3), says=(), out=b""):
    if "panicked" in err or code not in codes:
        return f"code {code}: {err[-400:]} {(out or b'')[-200:]!r}"
    if code in (1, 2) and "error" not in err:
        return f"no error message: {err[-400:]}"
    missing = [word for word in says if word.lower() not in err.lower()] if code in (1, 2) else []
    return f"the error does not say {missing}: {err[-400:]}" if missing else None


def limited(which, soft):
    return lambda: resource.setrlimit(which, (soft, soft))


def environments():
    for name, says, env in (
        ("HOME is not set", ["owner/name"], {"HOME": None, "HF_HOME": None, "XDG_CACHE_HOME": None}),
        ("HOME is empty", ["owner/name"], {"HOME": ""}), ("HOME is absent", ["owner/name"], {"HOME": "/absent/home"}),
        ("HOME is a file", ["owner/name"], {"HOME": "/etc/passwd"}), ("the hub's cache is a device", [],
        {"HF_HUB_CACHE": "/dev/null"}),
        ("the hub's cache has a long name", [], {"HF_HUB_CACHE": "/tmp/" + "x" * 5000}),
        ("an offline hub that is neither yes nor no", [], {"HF_HUB_OFFLINE": "maybe", "HF_ENDPOINT": "http://127.0.0.1:1"}),
        ("an endpoint that is no address", ["HF_ENDPOINT"], {"HF_ENDPOINT": "not an address"}),
        ("an endpoint of files", ["HF_ENDPOINT"], {"HF_ENDPOINT": "file:///etc"}),
        ("an endpoint that refuses", ["127.0.0.1:1"], {"HF_ENDPOINT": "http://127.0.0.1:1"}),
        ("a token of two lines", ["header"], {"HF_TOKEN": "a\r\nX-Evil: 1", "HF_ENDPOINT": "http://127.0.0.1:1"}),
        ("a token without end", [], {"HF_TOKEN_PATH": "/dev/zero", "HF_ENDPOINT": "http://127.0.0.1:1"}),
        ("a token in a folder", [], {"HF_TOKEN_PATH": "/etc", "HF_ENDPOINT": "http://127.0.0.1:1"}),
        ("a proxy that is no address", [], {"HTTP_PROXY": "::::", "http_proxy": "::::", "HF_ENDPOINT": "http://127.0.0.1:1"}),
    ):
        offline = [] if "HF_ENDPOINT" in env else ["--offline"]
        yield running(name, lambda runner, folder, env=env, says=says, offline=offline: finish(
            start(runner, folder, ["generate", "-n", "4", "-p", "a", "--model", "owner/name", *offline],
                  {"HF_HOME": str(folder / "hub"), **env}, before=limited(resource.RLIMIT_AS, 2 << 30)), codes=(1,), says=says))
    for name, env in {
        "Turkish": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}, "a locale of nonsense": {"LC_ALL": "\U0001f98a" * 99},
        "no columns": {"COLUMNS": "0"}, "many columns": {"COLUMNS": "9" * 30}, "a terminal of nonsense": {"TERM": "\x1b[31m"},
        "a small stack for threads": {"RUST_MIN_STACK": "1"}, "no threads": {"RAYON_NUM_THREADS": "0", "OMP_NUM_THREADS": "-1"},
        "a temporary folder that is absent": {"TMPDIR": "/absent/tmp"}, "no path": {"PATH": None, "HOME": None, "USER": None},
    }.items():
        yield running(f"environment: {name}", lambda runner, folder, env=env: finish(
            start(runner, folder, [*GENERATE, "--trace", "{dir}/trace.svg"], env), codes=(0,)) or tidy(runner, folder))
        yield running(f"environment of --help: {name}", lambda runner, folder, env=env: finish(
            start(runner, folder, ["generate", "--help"], env), codes=(0,)))
    for variable, value in (
        ("FORERUN_PORT", "eight"), ("FORERUN_PARALLEL", "-1"), ("FORERUN_QUEUE", "1e3"),
        ("FORERUN_API_KEY", ""), ("FORERUN_API_KEY", "a\nb"), ("FORERUN_CORS_ORIGIN", "a\r\nX-Evil: 1"),
        ("FORERUN_LOG_FORMAT", "xml"),
        ("FORERUN_REQUEST_SECONDS", "nan"), ("FORERUN_REQUEST_SECONDS", "1e300"), ("FORERUN_DRAIN_SECONDS", "-1"),
        ("FORERUN_MAX_BODY_BYTES", "16E"), ("FORERUN_HOST", "localhost"), ("FORERUN_CHAT_TEMPLATE", "{% if"),
        ("FORERUN_CONFIG", "/absent.toml"), ("FORERUN_CONFIG", "/etc"), ("FORERUN_CONFIG", "/dev/zero"), ("RUST_LOG", "a=b=c,[["),
    ):
        says = {"FORERUN_CONFIG": [value], "RUST_LOG": ["log"]}.get(variable,
            [variable.removeprefix("FORERUN_").lower().replace("_", "-")])
        says = {"/dev/zero": [], "{% if": ["template"]}.get(value, says)
        yield running(f"{variable}={value!r}", functools.partial(refuses_to_serve, env={variable: value}, says=says))
    for variable in ("FORERUN_CONFIG", "FORERUN_API_KEY", "RUST_LOG", "FORERUN_HOST"):
        yield running(f"{variable} in Latin-1", functools.partial(refuses_to_serve, env={variable: os.fsdecode(b"caf\xe9")}))
    yield running("an environment of nothing", lambda runner, folder: judge_run(subprocess.run(
        runner.command(GENERATE, folder), env={}, capture_output=True, timeout=LIMIT), (0,)))
    for name, which, soft, codes in (
        ("5 open files", resource.RLIMIT_NOFILE, 5, (0, 1)), ("8 open files", resource.RLIMIT_NOFILE, 8, (0, 1)),
        ("a stack of 128 kB", resource.RLIMIT_STACK, 128 << 10, (0, 1)), ("a stack without limit", resource.RLIMIT_STACK, -1,
        (0,)),
        ("locked memory of nothing", resource.RLIMIT_MEMLOCK, 0, (0,)), ("no priorities", resource.RLIMIT_NICE, 0, (0,)),
    ):
        yield running(f"limit: {name}", lambda runner, folder, which=which, soft=soft, codes=codes: finish(
            start(runner, folder, [*GENERATE, "--model={target}"], before=limited(which, soft)), codes=codes))
        yield running(f"limit of pearl: {name}", lambda runner, folder, which=which, soft=soft, codes=codes: finish(
            start(runner, folder, [*GENERATE, "--method", "pearl"], before=limited(which, soft)), codes=codes))
    for name, argv in {"export": ["export", "--model={exportable}", "--gguf", "{dir}/model.gguf"],
                       "a trace": ["generate", "-p", "Once", "--ignore-eos", "--trace", "{dir}/trace.json"],
                       "a comparison": ["bench", "run", "--out", "{dir}/out", "--limit", "1", "-n", "4", "--repeats",
                       "1"]}.items():
        yield running(f"files of 1000 bytes at most: {name}", lambda runner, folder, argv=argv: finish(
            start(runner, folder, argv, before=limited(resource.RLIMIT_FSIZE, 1000)), codes=(1,), says=["large"]) or tidy(runner,
            folder))
    for count in (0, 1, 2):
        def few(runner, folder, count=count):
            os.chmod(folder, 0o777)

            def nobody():
                os.setgroups([]), os.setgid(NOBODY), os.setuid(NOBODY)
                resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
            return finish(start(runner, folder, [*GENERATE, "--method", "pearl"], before=nobody), codes=(0, 1),
                says=["unavailable"])
        yield running(f"limit: {count} processes of a user", few)
    yield running("a core that is not allowed", lambda runner, folder: finish(
        start(runner, folder, [*GENERATE, "--placement", "target=cpu:0,drafter=cpu:0,shared"],
        before=lambda: os.sched_setaffinity(0, {1})),
        codes=(0, 1), says=["core"]))
    yield running("one core for pearl", lambda runner, folder: finish(
        start(runner, folder, [*GENERATE, "--method", "pearl"], before=lambda: os.sched_setaffinity(0, {1})), codes=(0, 1),
        says=["core"]))

    def gone(argv, codes):
        def run(runner, folder):
            (folder / "gone").mkdir()
            return finish(start(runner, folder, argv, before=lambda: os.rmdir(folder / "gone"), cwd=folder / "gone"), codes=codes)
        return run
    yield running("a current folder that is gone", gone(GENERATE, (0,)))
    yield running("a current folder that is gone, for a comparison", gone(["bench", "run", "--limit", "1", "-n", "4"], (1,)))
    yield running("a current folder that is gone, for a trace", gone([*GENERATE, "--trace", "a.svg"], (1,)))
    for name, commands in {"/proc": "mount -t tmpfs none /proc", "/sys": "mount -t tmpfs none /sys",
                           "/dev": "mount -t tmpfs none /dev",
                           "/proc and /sys": "mount -t tmpfs none /proc; mount -t tmpfs none /sys"}.items():
        for argv in (GENERATE, ["devices"], ["serve", "--port", "x"]):
            def without(runner, folder, commands=commands, argv=argv):
                words = ["unshare", "-m", "sh", "-c", commands + '; exec "$@"', "sh", *runner.command(argv, folder)]
                done = subprocess.run(words, capture_output=True, cwd=folder, timeout=LIMIT, stdin=subprocess.DEVNULL)
                if b"unshare" in done.stderr or b"mount:" in done.stderr:
                    return None
                return judge_run(done, (2,) if argv[0] == "serve" else (0,))
            yield running(f"{argv[0]} without {name}", without)
    for method in (["--method", "pearl"], ["--method", "dsi"], []):
        def stopped(runner, folder, method=method):
            process = start(runner, folder, ["generate", "-p", "Once", "-n", "400", "--ignore-eos", *method])
            for _ in range(8):
                process.send_signal(signal.SIGSTOP)
                time.sleep(0.02)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.005)
            return finish(process, codes=(0,))
        yield running(f"stopped and continued {' '.join(method)}", stopped)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR1, signal.SIGALRM):
        def signalled(runner, folder, number=number):
            process = start(runner, folder, ["export", "--model={exportable}", "--type", "q4_k_m", "--gguf", "{dir}/a.gguf"])
            time.sleep(0.1)
            process.send_signal(number)
            return finish(process, codes=(0, 1, -number, 128 + number)) or (tidy(runner,
                folder) if number == signal.SIGHUP else None)
        yield running(f"export and {number.name}", signalled)


def judge_run(done, codes):
    return judge(done.returncode, done.stderr.decode(errors="replace"), codes, out=done.stdout)


def refuses_to_serve(runner, folder, options=(), env=None, says=()):
    """Starts a server that should not start."""
    port = [] if "FORERUN_PORT" in (env or {}) or "--config" in options else ["--port", "0"]
    process = start(runner, folder, ["serve", *port, *options], env, before=limited(resource.RLIMIT_AS, 2 << 30))
    if select.select([process.stdout], [], [], LIMIT)[0] and (line := process.stdout.readline()):
        process.kill()
        process.communicate()
        return f"the server started: {line}"
    return finish(process, codes=(1, 2), says=says)


def structured():
    deep = '{"type": "array", "items": ' * 3000 + "{}" + "}" * 3000
    many = {f"property {i}": {"type": "string"} for i in range(20_000)}
    # With True, a schema that no answer follows, or that is no schema: it must be refused.
    schemas = {
        "empty": ("", True), "a word": ("yes", True), "a list": ("[]", True), "a number": ("7", True), "null": ("null", True),
        "cut": ('{"type": "obj', True), "two schemas": ('{"type": "null"} {"type": "null"}', True),
        "Latin-1": (b'{"const": "\xe9"}', True), "UTF-16": ('{"type": "null"}'.encode("utf-16"), True),
        "a byte-order mark": (b'\xef\xbb\xbf{"type": "null"}', False), "NULs": (b"\0" * 99, True),
        "itself": ('{"$ref": "#"}', True), "each other": (
            '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}', True),
        "another site": ('{"$ref": "http://127.0.0.1:1/x.json"}', True), "a file": ('{"$ref": "file:///etc/passwd"}', True),
        "an absent part": ('{"$ref": "#/$defs/absent"}', True), "a list without end": (
            '{"type": "array", "items": {"$ref": "#"}, "minItems": 1}', False),
        "an object without end": ('{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}', False),
        "a tree": ('{"type": "array", "items": {"$ref": "#"}}', False), "an unknown type": ('{"type": "strnig"}', True),
        "a type of 3": ('{"type": 3}', True), "no values": ('{"enum": []}', True), "false": ('{"not": {}}', True),
        "crossed bounds": ('{"type": "integer", "minimum": 5, "maximum": 3}', True),
        "crossed lengths": ('{"type": "string", "minLength": 9, "maxLength": 3}', True),
        "a negative length": ('{"type": "string", "maxLength": -1}', True),
        "a length of 10^12": ('{"type": "string", "minLength": 1000000000000}', True),
        "10^9 items": ('{"type": "array", "items": {"type": "null"}, "minItems": 1000000000}', False),
        "10^9 nested items": (json.dumps({"type": "array", "minItems": 1000,
        "items": {"type": "array", "minItems": 1000, "items": {
            "type": "array", "minItems": 1000, "items": {"type": "null"}}}}), False),
        "a bound of 10^999": ('{"type": "number", "maximum": 1e999}', False), "a bound of many digits": (
            '{"type": "integer", "minimum": ' + "9" * 5000 + "}", False),
        "multiples of zero": ('{"type": "integer", "multipleOf": 0}', True),
        "multiples of a tiny number": ('{"type": "number", "multipleOf": 1e-300}', False),
        "multiples of primes": ('{"allOf": [%s]}' % ", ".join('{"type": "integer", "multipleOf": %d}' % p for p in (
            9973, 9967, 9949, 9941, 9931, 9929)), False),
        "a pattern that is none": ('{"type": "string", "pattern": "("}', True),
        "a pattern that explodes": ('{"type": "string", "pattern": "^(([a-z]{1,99}){1,99}){1,99}$"}', False),
        "a pattern that looks ahead": ('{"type": "string", "pattern": "(?=a)b"}', True),
        "a lone surrogate": ('{"const": "\\ud800"}', True), "a NUL character": ('{"const": "a\\u0000b"}', False),
        "the same key twice": ('{"type": "null", "type": "string"}', False), "an unknown format": (
            '{"type": "string", "format": "x"}', True), "a required property that is forbidden": (
            '{"type": "object", "properties": {}, "required": ["a"], "additionalProperties": false}', True),
        "properties of a list": ('{"type": "object", "properties": [1]}', True), "a long constant": (
            json.dumps({"const": "x" * 3_000_000}), False), "3000 levels": (deep, False),
        "100000 brackets": ('{"a":' * 100_000, True), "20000 properties": (json.dumps({"type": "object", "properties": many}),
        False),
        "20000 required properties": (json.dumps({"type": "object", "properties": many, "required": list(many)}), False),
        "20000 constants": (json.dumps({"enum": [f"value {i}" * 9 for i in range(20_000)]}), False),
        "a product of choices": (json.dumps({"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {"const": j}}} for j in range(8)]}
                                                       for i in range(12)]}), False),
        "one of 500 objects": (json.dumps({"oneOf": [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}}
                                                     for i in range(500)]}), False),
    }
    for name, (text, refused) in schemas.items():
        yield case(f"schema: {name}", [*GENERATE, "--json-schema", "{dir}/schema"], REFUSES if refused else SURVIVES, ["schema"],
                   prepare=put("schema", text))
    # None: it must be answered.
    for name, expression, refused in (
        ("empty", "", False), ("not closed", "(", True), ("nothing", "[^\\s\\S]", True),
        ("nothing after something", "a[^\\s\\S]", True),
        ("a million", "a{1000000}", False), ("a million million", "(a{1000}){1000}", False),
        ("10^9", "((a{1000}){1000}){1000}", False),
        ("10^12", "a{1000000000000}", True), ("crossed counts", "a{5,3}", True), ("looking back", "(?<=a)b", True),
        ("a reference", "(a)\\1", True), ("letters of all scripts", "\\p{L}{500}", False),
        ("an unknown class", "\\p{Nope}", True),
        ("stars of stars", "((((((((a*)*)*)*)*)*)*)*)*", False), ("guesses", "(.*x){30}", False),
        ("a set of states", "(a|b)*a(a|b){40}", False), ("5000 parentheses", "(" * 5000 + ")" * 5000, True),
        ("anchors in the middle", "a^b$c", True), ("bytes", "(?-u)\\xff", True), ("the end before the beginning", "$^", False),
        ("100 kB", "abcdefghij" * 10_000, False), ("a word boundary", "\\bno\\b", False), ("a flag", "(?i)straße", False),
        ("emoji", "[\U0001f600-\U0001f64f]{3}", False), ("a range backwards", "[z-a]", True), ("a newline", "\n", None),
        ("a space", " ", None),
    ):
        yield case(f"regex: {name}", [*GENERATE, f"--regex={expression}"],
            ANSWERS if refused is None else REFUSES if refused else SURVIVES,
                   ["regular expression"])
    for name, extension, text, refused in (
        ("empty", "gbnf", "", True), ("spaces", "gbnf", " \n\t\n", True), ("comments", "gbnf", "# nothing\n", True),
        ("no root", "gbnf", 'a ::= "x"', True), ("itself", "gbnf", "root ::= root", True),
        ("absent", "gbnf", "root ::= nope", True),
        ("left recursion", "gbnf", 'root ::= root "a" | "a"', False), ("ambiguous", "gbnf", 'root ::= root root | "a" | ""',
        False),
        ("more ambiguous", "gbnf", 'root ::= (root root root | root root | " " | "a" | "t" | "h" | "e")*', False),
        ("in circles", "gbnf", 'root ::= a\na ::= b\nb ::= a | "x"', False), ("without end", "gbnf", 'root ::= "a" root', False),
        ("not closed", "gbnf", 'root ::= "a', True), ("a class that is not closed", "gbnf", "root ::= [a-", True),
        ("10^9 times", "gbnf", 'root ::= "a"{1000000000}', True), ("10^20 times", "gbnf", 'root ::= "a"{100000000000000000000}',
        True),
        ("nested times", "gbnf", 'root ::= ((("a"{999}){999}){999}){999}', False),
        ("crossed times", "gbnf", 'root ::= "a"{5,3}', True),
        ("a bad escape", "gbnf", 'root ::= "\\q\\x\\u12"', True), ("a surrogate", "gbnf", 'root ::= "\\uD800"', True),
        ("beyond Unicode", "gbnf", 'root ::= "\\U00110000"', True), ("5000 parentheses", "gbnf",
        "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, True),
        ("100000 choices", "gbnf", "root ::= " + " | ".join(f'"c{i}"' for i in range(100_000)), False),
        ("20000 rules", "gbnf", "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}?\n' for i in range(20_000)) + 'r20000 ::= "b"',
        False),
        ("the same rule twice", "gbnf", 'root ::= "a"\nroot ::= "b"', False),
        ("Windows lines", "gbnf", 'root ::= "a" b\r\nb ::= "c"\r\n', False),
        ("Latin-1", "gbnf", b'root ::= "\xe9"', True), ("Lark in GBNF", "gbnf", 'start: "a"', True),
        ("JSON", "gbnf", '{"a": 1}', True),
        ("random bytes", "gbnf", bytes(i * 89 % 256 for i in range(5000)), True), ("an empty text", "gbnf", 'root ::= ""', False),
        ("empty", "lark", "", True), ("no start", "lark", 'a: "x"', True), ("itself", "lark", "start: start", True),
        ("absent", "lark", "start: nope", True), ("a terminal of itself", "lark", "start: A\nA: A", True),
        ("an import", "lark", "%import /etc/passwd\nstart: x", True), ("GBNF in Lark", "lark", 'root ::= "a"', True),
        ("a regex that explodes", "lark", "start: /((a{1,500}){1,500}){1,500}/", False),
        ("ambiguous", "lark", 'start: start start | "a" | ""', False),
        ("JSON that is none", "lark", "start: %json {", True), ("an unknown directive", "lark", "%nope 3\nstart: /a/", True),
        ("10^9 times", "lark", 'start: "a"~1000000000', False), ("ignored nothing", "lark", '%ignore //\nstart: "a"', False),
        ("everything", "txt", "hello", True), ("nothing", "txt", "", True),
    ):
        yield case(f"grammar.{extension}: {name}", [*GENERATE, f"--grammar={{dir}}/grammar.{extension}"],
            REFUSES if refused else SURVIVES,
                   ["grammar"], prepare=put(f"grammar.{extension}", text))
    for extra, says in (
        (["--json-object", "--regex", "a"], ["--regex"]), (["--json-object", "--json-schema", "{}"], ["--json-schema"]),
        (["--json-object", "--ignore-eos"], ["ignore-eos"]), (["--json-schema", "/"], ["json-schema"]),
        (["--grammar", "/absent"], ["/absent"]), (["--json-schema", ""], ["json-schema"]), (["--json-schema", " {}"], []),
        (["--json-schema", "{dir}"], ["json-schema"]), (["--regex", "abc", "--logit-bias", "0=-100"], []),
        (["--json-object", "--draft-model", "{target}"], []), (["--json-object", "--model", "{llama2c}"], []),
        (["--json-object", "--model", "{gguf}", "--drafter", "lookahead"], []),
        (["--regex", "x", "--stop", "x"], []), (["--regex", "yes|no", "--temperature", "2", "--top-k", "1", "--min-p", "1"], []),
        (["--json-object", "--repetition-penalty", "1e30"], []), (["--json-object", "--method", "dsi", "--also-draft",
        "prompt-lookup"], []),
        (["--regex", "[^a]{3}", "--method", "pearl", "--pearl", "paper,no-pre-verify,no-post-verify"], []),
        (["--regex", ".", "--tree", "top:60x60:60"], []),
    ):
        yield case(f"structured: {' '.join(extra)}", [*GENERATE, *extra], SURVIVES if says == [] else REFUSES, says)


def configurations():
    texts = {
        "empty": ("", []), "a byte-order mark": (b"\xef\xbb\xbfseed = 1\n", []),
        "UTF-16": ("seed = 1".encode("utf-16"), ["file.toml"]),
        "Latin-1": (b"prompt = 'caf\xe9'", ["UTF-8"]), "JSON": ('{"seed": 1}', ["file.toml"]), "YAML": ("seed: 1", ["file.toml"]),
        "the same key twice": ("seed = 1\nseed = 2", ["seed"]), "an unknown key": ("sede = 1", ["sede"]),
        "a key of spaces": ('" " = 1', []),
        "an unknown table": ("[nope]\nseed = 1", ["nope"]), "a command that is a number": ("generate = 3", ["generate"]),
        "a command of another": ("[generate.generate]\nseed = 1", ["generate"]),
        "a subcommand without command": ("[run]\nlimit = 1", ["run"]),
        "a table of a table": ("[generate.seed]\nx = 1", ["seed"]), "a list for a number": ("seed = [1, 2]", ["seed"]),
        "a list of lists": ("stop = [['a']]", ["stop"]), "text for a number": ("seed = 'x'", ["seed"]),
        "a date": ("seed = 1979-05-27", ["seed"]),
        "a float for a number": ("max-tokens = 1.5", ["max-tokens"]), "NaN": ("temperature = nan", ["temperature"]),
        "infinity": ("temperature = inf", ["temperature"]), "a large number": ("seed = 99999999999999999999999", ["file.toml"]),
        "a negative number": ("max-tokens = -3", ["max-tokens"]), "a number for a switch": ("json = 3", ["json"]),
        "text for a switch": ("json = 'yes'", ["json"]), "a switch that is false": ("json = false", []),
        "a configuration in itself": ("config = '{dir}/file.toml'", ["config"]), "help": ("help = true", ["help"]),
        "version": ("version = true", ["version"]), "a short option": ("n = 3", ["n"]), "dashes": ("--seed = 3", ["file.toml"]),
        "underscores": ("max_tokens = 3", []), "underscores and dashes": ("max_tokens = 3\nmax-tokens = 4", ["max"]),
        "two prompts": ("prompt = 'a'\nprompt-file = 'b'", []),
        "an alias": ("repeat-penalty = 1.5", []), "an alias and its option": ("repeat-penalty = 1.5\nrepetition-penalty = 1.5",
        []),
        "an option of no command": ("[generate]\nlimit = 3", ["limit"]), "a NUL": ("stop = 'a\0b'", ["file.toml"]),
        "an escaped NUL": ('stop = "a\\u0000b"', []), "a surrogate": ('stop = "\\ud800"', ["file.toml"]),
        "a deep list": ("stop = " + "[" * 50_000, ["file.toml"]), "a deep key": (".".join("a" * 50_000) + " = 1", []),
        "many keys": ("".join(f"key{i} = {i}\n" for i in range(50_000)), []), "many stops": (f"stop = {['x' * 9] * 100_000}", []),
        "random bytes": (bytes(i * 131 % 256 for i in range(3000)), ["file.toml"]),
        "not closed": ("[generate\nseed = 1", ["file.toml"]),
        "a list of tables": ("[[generate]]\nseed = 1\n[[generate]]\nseed = 2", ["generate"]), "an empty key": ("'' = 3", []),
        "a value that looks like an option": ("stop = '--json'", []), "a model that looks like an option": ("model = '--json'",
        []),
        "control characters in a key": ('"\\u001b[31m" = 1', []),
    }
    for name, (text, says) in texts.items():
        yield case(f"configuration: {name}", ["generate", "-p", "a", "--config", "{dir}/file.toml"],
            REFUSES if says else SURVIVES,
                   says, prepare=put("file.toml", text))
    for name, text, says in (
        ("a port of text", "[serve]\nport = 'x'", "port"), ("a port beyond", "[serve]\nport = 65536", "port"),
        ("a port of a list",
         "[serve]\nport = [1, 2]", "port"), ("an empty key", "[serve]\nport = 0\napi-key = ['']", "api-key"),
         ("a key of a number",
         "[serve]\nport = 0\napi-key = [[3]]", "api-key"), ("an origin that is none",
         "[serve]\nport = 0\ncors-origin = 'not an origin'", "cors-origin"),
        ("a name of nothing", "[serve]\nport = 0\nserved-model-name = ''", "served-model-name"),
        ("a queue below zero", "[serve]\nqueue = -1", "queue"),
        ("seconds without end", "[serve]\nport = 0\nrequest-seconds = inf", "request-seconds"),
        ("a body of nothing", "[serve]\nport = 0\nmax-body-bytes = 0", "max-body-bytes"),
        ("no bytes for the cache", "cache-bytes = 0\n[serve]\nport = 0", "cache-bytes"), ("a template of a folder",
         "[serve]\nport = 0\nchat-template = '/'", "template"), ("a tree", "[serve]\nport = 0\ntree = 'top:0x0'", "tree"),
        ("pearl and a tree", "method = 'pearl'\ntree = 'top:2x2'\n[serve]\nport = 0", "tree"),
    ):
        yield running(f"configuration of a server: {name}", lambda runner, folder, text=text, says=says: (
            (folder / "file.toml").write_text(text), refuses_to_serve(runner, folder, ["--config", "{dir}/file.toml"],
            says=[says]))[1])
    yield case("a configuration of a pipe", ["generate", "-p", "a", "--config", "/dev/stdin"], ANSWERS, stdin=b"max-tokens = 2\n")
    yield case("a configuration and a prompt of one pipe", ["generate", "--config", "/dev/stdin"], SURVIVES,
        stdin=b"max-tokens = 2\n")
    yield case("two configurations", [*GENERATE, "--config", "/dev/null", "--config", "/dev/null"], SURVIVES, ["config"])


def nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def paths():
    odd = {"a newline": "a\nb", "a leading dash": "-x", "two dots": "...", "a tilde": "~", "emoji": "\U0001f98a",
        "right to left": "\u202egp",
           "spaces": "  ", "a percent": "%s%n", "a star": "*", "quotes": "'\"`$(x)", "an escape": "\x1b[31m", "an at sign": "a@b",
           "a colon": "a:b",
           "Latin-1": os.fsdecode(b"caf\xe9"), "255 letters": "x" * 255, "a backslash": "a\\b", "a hash": "#"}
    for name, word in odd.items():
        def prepare(runner, folder, word=word):
            model(lambda copy: None)(runner, folder)
            (folder / "model").rename(folder / word)
            (folder / word / "prompt").write_text("Once")
            return [f"{word}/config.json", f"{word}/prompt"]
        inside = f"{{dir}}/{word}"
        expect = SURVIVES if name == "Latin-1" else ANSWERS
        yield case(f"a folder named with {name}", ["generate", "-n", "4", f"--model={inside}", f"--prompt-file={inside}/prompt",
                                                   f"--trace={inside}/trace.txt"], expect, ["UTF-8"], prepare=prepare)
        yield case(f"a relative folder named with {name}", ["generate", "-n", "4", f"--model={word}", "-p", "Once", "--json"],
            expect, ["UTF-8"], prepare=prepare)
        # The message shows the name in a terminal, so it may not contain control characters.
        yield running(f"an absent name with {name}", lambda runner, folder, word=word: escapes(start(
            runner, folder, ["generate", "-n", "4", f"--prompt-file={folder}/{word}/absent"])))
        yield running(f"an exported file named with {name}", lambda runner, folder, word=word: finish(start(
            runner, folder, ["export", "--model={exportable}", f"--gguf={word}", "--type", "q4_0"]), codes=(0,)) or (
                tidy(runner, folder) if (folder / word).is_file() else "no file"))

    def fifo(name):
        def change(copy):
            (copy / name).unlink(missing_ok=True)
            os.mkfifo(copy / name)
        return change
    for name in ("config.json", "tokenizer.json", "model.safetensors", "generation_config.json", "chat_template.jinja"):
        yield case(f"a pipe without writer for {name}", [*GENERATE, "--model={dir}/model"], SURVIVES, ["model"],
            prepare=model(fifo(name)))
    yield case("a pipe without writer for a prompt", ["generate", "-n", "4", "-f", "{dir}/model/prompt"], INTERRUPTED,
        prepare=model(fifo("prompt")),
               signal=signal.SIGINT, after=0.5)

    def written(runner, folder):
        os.mkfifo(folder / "pipe")
        process = start(runner, folder, ["generate", "-n", "4", "-f", "{dir}/pipe"])
        with open(folder / "pipe", "wb", buffering=0) as pipe:
            for byte in "Once upon é".encode():
                pipe.write(bytes([byte]))
                time.sleep(0.01)
        return finish(process, codes=(0,))
    yield running("a pipe that writes slowly", written)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        def links(copy, name=name):
            (copy / name).rename(copy / "real")
            for i in range(30):
                (copy / f"link{i}").symlink_to(f"link{i + 1}" if i < 29 else "real")
            (copy / name).symlink_to("link0")
        yield case(f"30 links to {name}", [*GENERATE, "--model={dir}/model"], ANSWERS, prepare=model(links))
        yield case(f"{name} links to nothing", [*GENERATE, "--model={dir}/model"], says=[name], prepare=model(
            lambda copy, name=name: ((copy / name).unlink(), (copy / name).symlink_to("/absent"))))
        yield case(f"{name} without end", [*GENERATE, "--model={dir}/model"], says=[name], memory=2 << 30, prepare=model(
            lambda copy, name=name: ((copy / name).unlink(), (copy / name).symlink_to("/dev/zero"))))

        def secret(runner, folder, name=name):
            model(lambda copy: (copy / name).chmod(0))(runner, folder)
            os.chmod(folder, 0o777)
            return finish(start(runner, folder, [*GENERATE, "--model={dir}/model"], before=nobody), codes=(1,), says=[name])
        yield running(f"{name} that may not be read", secret)
    yield case("a folder in itself", [*GENERATE, "--model={dir}/model"], ANSWERS,
        prepare=model(lambda copy: (copy / "model").symlink_to(copy)))
    yield case("1 TB of weights", [*GENERATE, "--model={dir}/model"], prepare=lambda runner, folder: (model(
        lambda copy: os.truncate(copy / "model.safetensors", 1 << 40))(runner, folder), None)[1])
    yield case("1 TB of GGUF", [*GENERATE, "--model={dir}/model/model.gguf"], SURVIVES, prepare=lambda runner, folder: (model(
        lambda copy: os.truncate(copy / "model.gguf", 1 << 40), "gguf")(runner, folder), None)[1])
    yield case("two GGUF files", [*GENERATE, "--model={dir}/model"], says=["gguf"], prepare=model(
        lambda copy: os.link(copy / "model.gguf", copy / "other.gguf"), "gguf"))

    def guarded(argv, codes=(1,), says=(), mode=0o555, before=None):
        def run(runner, folder):
            (folder / "out").mkdir()
            (folder / "out" / "old").write_text("precious")
            os.chmod(folder / "out" / "old", 0o444)
            os.chmod(folder / "out", mode)
            os.chmod(folder, 0o755)
            wrong = finish(start(runner, folder, argv, before=lambda: (nobody(), before and before())), codes=codes, says=says)
            return wrong or tidy(runner,
                folder) or (None if (folder / "out/old").read_text() == "precious" else "the old file is lost")
        return run
    pair = ["--layers", "2", "--hidden", "64", "--intermediate", "96", "--heads", "2", "--kv-heads", "1", "--vocab-size", "300",
            "--prompts", "2", "-n", "8", "--tolerance", "0.5"]
    bench = ["bench", "run", "--limit", "1", "-n", "4", "--repeats", "1"]
    for name, argv in {"export": ["export", "--model={exportable}", "--gguf", "{dir}/out/new"],
        "a trace": [*GENERATE, "--trace", "{dir}/out/new"],
                       "a comparison": [*bench, "--out", "{dir}/out"], "a pair": ["make-pair", *pair, "--out", "{dir}/out/pair"],
                       "a sweep": ["simulate", "heatmaps", "--steps", "2", "--lookaheads", "2", "--out",
                       "{dir}/out/new"]}.items():
        yield running(f"a folder without write access: {name}", guarded(argv, says=["out"]))
        yield running(f"a folder that may not be listed: {name}", guarded(argv, codes=(0, 1), mode=0o333))
        yield running(f"no rights for new files: {name}", guarded(argv, codes=(0, 1), mode=0o777, before=lambda: os.umask(0o777)))

    def overwritten(name, argv):
        def prepare(runner, folder):
            model(lambda copy: (copy / "prompt").write_text("Once upon"), "exportable")(runner, folder)
            (folder / "grid.toml").write_text("acceptance = [0.5]\n")
            (folder / "grid.csv").write_text("acceptance = [0.5]\n")
            return ["model/model.safetensors", "model/config.json", "model/tokenizer.json", "grid.toml", "grid.csv"]
        return case(f"an output on its input: {name}", argv, SURVIVES, prepare=prepare)
    yield overwritten("a trace on the model", [*GENERATE, "--model={dir}/model", "--trace={dir}/model/model.safetensors"])
    yield overwritten("a trace on the tokenizer", [*GENERATE, "--model={dir}/model",
        "--trace={dir}/model/../model/tokenizer.json"])
    yield overwritten("export on the tokenizer", ["export", "--model={dir}/model", "--gguf={dir}/model/tokenizer.json"])
    yield overwritten("a sweep on its grid", ["simulate", "sweep", "{dir}/grid.toml", "--out", "{dir}/grid.toml"])
    yield overwritten("a sweep of a grid named .csv", ["simulate", "sweep", "{dir}/grid.csv"])
    yield overwritten("heatmaps on a foreign table", ["simulate", "heatmaps", "--steps", "2", "--lookaheads", "2", "--out",
        "{dir}/grid.csv"])
    yield overwritten("a pair on a model", ["make-pair", *pair, "--out", "{dir}/model"])
    yield overwritten("a pair on a model by force", ["make-pair", *pair, "--out", "{dir}/model", "--force"])
    yield overwritten("a calibration on the model", ["simulate", "calibrate", "--model={dir}/model", "--draft-model={drafter}",
                                                     "--rounds=1", "--prompts=1", "-n=4", "--check=1",
                                                     "--out={dir}/model/config.json"])
    yield overwritten("layer groups on the model", ["analyze", "layers", "--model={dir}/model", "--rounds=0", "--limit=1",
        "--tokens=16", "--search",
                                                    "{dir}/model/config.json"])

    def forced(runner, folder):
        (folder / "target").mkdir()
        (folder / "target" / "thesis.txt").write_text("precious")
        (folder / "notes.txt").write_text("precious")
        wrong = finish(start(runner, folder, ["make-pair", *pair, "--force", "--out", "{dir}"]))
        kept = (folder / "notes.txt").exists() and (folder / "target/thesis.txt").exists()
        return wrong or (None if kept else "files of the user are lost")
    yield running("a pair by force among other files", forced)

    def killed(name, argv, after):
        def run(runner, folder):
            process = start(runner, folder, argv)
            time.sleep(after)
            process.kill()
            process.communicate()
            return finish(start(runner, folder, argv), codes=(0,)) or tidy(runner, folder)
        return running(f"killed after {after} s, and again: {name}", run)
    for after in (0.05, 0.12, 0.3):
        yield killed("export", ["export", "--model={exportable}", "--gguf", "{dir}/a.gguf", "--type", "q4_k_m"], after)
        yield killed("a comparison", [*bench, "--out", "{dir}/out"], after)
        yield killed("a pair", ["make-pair", *pair, "--out", "{dir}/pair", "--force"], after)
        yield killed("heatmaps", ["simulate", "heatmaps", "--steps", "12", "--lookaheads", "8", "--out", "{dir}/h.csv"], after)

    def together(name, argv, count, codes):
        def run(runner, folder):
            runs = [start(runner, folder, argv) for _ in range(count)]
            wrong = [finish(process, codes=codes) for process in runs]
            if 0 not in [process.returncode for process in runs]:
                return f"nobody succeeds: {wrong}"
            return next(filter(None, wrong), None) or tidy(runner, folder)
        return running(f"{count} at the same time: {name}", run)
    yield together("export", ["export", "--model={exportable}", "--gguf", "{dir}/a.gguf"], 4, (0, 1))
    yield together("a trace", [*GENERATE, "--trace", "{dir}/a.json"], 6, (0, 1))
    yield together("a pair", ["make-pair", *pair, "--out", "{dir}/pair"], 4, (0, 1))
    yield together("a pair by force", ["make-pair", *pair, "--out", "{dir}/pair", "--force"], 4, (0, 1))
    yield together("heatmaps", ["simulate", "heatmaps", "--steps", "9", "--lookaheads", "9", "--out", "{dir}/a.csv"], 4, (0, 1))

    def vanishing(what):
        def run(runner, folder):
            model(lambda copy: None, "exportable")(runner, folder)
            process = start(runner, folder, ["chat", "--model={dir}/model", "-n", "4"], stdin=subprocess.PIPE)
            process.stdin.write(b"Hello\n")
            process.stdin.flush()
            process.stdout.read(1)
            what(folder / "model" / "model.safetensors")
            return finish(process, b"Hello again\n" * 3, codes=(0, 1))
        return run
    yield running("weights that are removed during a chat", vanishing(lambda path: path.unlink()))
    yield running("weights that are cut during a chat", vanishing(lambda path: os.truncate(path, 100)))

    def damaged_gguf(name, old, new, expect=REFUSES, says=()):
        def change(copy):
            data = (copy / "model.gguf").read_bytes()
            assert old in data and len(old) == len(new)
            (copy / "model.gguf").write_bytes(data.replace(old, new, 1))
        return case(f"GGUF: {name}", [*GENERATE, "--model={dir}/model/model.gguf"], expect, says, prepare=model(change, "gguf"))

    def text(words):
        return struct.pack("<Q", len(words)) + words
    yield damaged_gguf("another architecture", text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"),
                       text(b"general.architecture") + struct.pack("<I", 8) + text(b"mamba"), says=["mamba"])
    yield damaged_gguf("an architecture that is a number", text(b"general.architecture") + struct.pack("<I", 8),
                       text(b"general.architecture") + struct.pack("<I", 10))
    for key in (b"llama.block_count", b"llama.embedding_length", b"llama.attention.head_count", b"llama.context_length",
                b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges", b"tokenizer.ggml.model"):
        # An exported file also has the tokenizer as JSON.
        expect = SURVIVES if b"tokenizer" in key else REFUSES
        yield damaged_gguf(f"no {key.decode()}", key, key[:-1] + b"X", expect, says=[key.decode().rsplit(".")[-1]])
    for key in (b"llama.block_count", b"llama.attention.head_count", b"llama.embedding_length", b"llama.context_length"):
        for kind in (0, 6, 7, 9, 12, 13, 255):
            yield damaged_gguf(f"{key.decode()} of type {kind}", text(key) + struct.pack("<I", 4),
                text(key) + struct.pack("<I", kind), SURVIVES)
    for key in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges"):
        for kind in (0, 9, 99):
            yield damaged_gguf(f"{key.decode()} of a list of type {kind}", text(key) + struct.pack("<II", 9, 8),
                               text(key) + struct.pack("<II", 9, kind))
    yield damaged_gguf("a token in Latin-1", text(b"the"), struct.pack("<Q", 3) + b"\xe9\xff\xfe", SURVIVES)
    yield damaged_gguf("a tensor of another name", b"blk.0.attn_q.weight", b"blk.9.attn_q.weight")


def escapes(process):
    """Waits for a refusal, whose message may not contain control characters."""
    out, err = process.communicate(timeout=LIMIT)
    wrong = judge(process.returncode, err.decode(errors="replace"), (1,), out=out)
    return wrong or (f"control characters in {err!r}" if re.search(rb"[\x00-\x09\x0b-\x1f]", err) else None)


def laboratory():
    bench = ["bench", "run", "--limit", "1", "-n", "4", "--repeats", "1", "--out", "{dir}/out"]
    for extra, says in (
        (["--limit", "0"], ["limit"]), (["--repeats", "0"], ["repeats"]), (["--max-tokens", "0"], ["max-tokens"]),
        (["--warm-ups=-1"], ["warm-ups"]),
        (["--draft-tokens", "2,,4"], ["draft-tokens"]), (["--draft-tokens", ","], ["draft-tokens"]),
        (["--draft-tokens", "0"], []),
        (["--draft-tokens", "2,2,2"], []), (["--temperature", "0,nan"], ["temperature"]),
        (["--temperature", ""], ["temperature"]),
        (["--dtype", "f32,f32"], []), (["--dtype", "all"], ["dtype"]), (["--preset", "easyspec-ladder", "--method", "pearl"], []),
        (["--suite", ""], ["suite"]), (["--suite", "gsm8k"], ["--data"]), (["--suite", "gsm8k", "--data", "/absent"],
        ["/absent"]),
        (["--suite", "gsm8k", "--data", "/etc/passwd"], ["passwd"]), (["--suite", "default,default"], []), (["--suite", "/"], []),
        (["--suite", "default,,"], ["suite"]), (["--placement", "target=cpu:0,target=cpu:0"], ["placement"]),
        (["--tree", "top:2x2", "--method", "pearl"], []),
        (["--drafter", "medusa"], ["medusa"]), (["--prompts-as", "chat"], []), (["--seed", "18446744073709551615"], []),
        (["--top-p", "0"], ["top-p"]),
        (["--full", "--limit", "1"], []), (["--sweep", "/dev/null"], []), (["--model", "{target}", "--draft-model",
        "{target},/absent"], ["/absent"]),
        (["--model", "{target}", "--draft-model", "{target},,{target}"], []),
        (["--layer-groups", "@/dev/null"], ["layer-groups"]),
    ):
        argv = [word for word in bench if not (word in extra and word != "{dir}/out")]
        if set(extra) & {"--limit", "--repeats", "--max-tokens"}:
            argv = ["bench", "run", "-n", "4", "--out", "{dir}/out"]
            argv = argv[:2] + argv[4:] if "--max-tokens" in extra else argv
        yield case(f"bench {' '.join(extra)}", [*argv, *extra], REFUSES if says else SURVIVES, says)
    suites = {
        "empty.jsonl": (b"", True), "empty.txt": (b"\n\n\n", True), "cut.jsonl": (b'{"prompt": "Once"}\n{"prom', True),
        "other.jsonl": (b'{"x": 1}\n', True),
        "number.jsonl": (b'{"prompt": 3}\n', True), "turns.jsonl": (b'{"turns": []}\n', True),
        "nested.jsonl": (b'{"turns": [[["a"]]]}\n', True),
        "null.jsonl": (b"null\n", True), "blank.jsonl": (b'\n\n{"prompt": "Once"}\n\n', False),
        "void.jsonl": (b'{"prompt": ""}\n', False),
        "both.jsonl": (b'{"prompt": "a", "turns": ["b"]}\n', False), "surrogate.jsonl": (b'{"prompt": "\\ud800"}\n', True),
        "latin.txt": (b"caf\xe9", True), "bytes.tsv": (bytes(range(256)), True), "tabs.tsv": (b"\t\t\t\n\t\n", False),
        "one.tsv": (b"Once", False),
        "plain.jsonl.gz": (b'{"prompt": "a"}\n', True), "cut.jsonl.gz": (gzip.compress(b'{"prompt": "a"}\n' * 999)[:-9], True),
        "long.txt": (b"word " * 100_000, True), "NULs.txt": (b"\0" * 5000, False), "deep.jsonl": (b'{"prompt":' * 50_000, True),
        "bomb.jsonl.gz": (gzip.compress(b'{"prompt": "' + b"a" * 300_000_000, 9), True), "none": (b"Once", False),
        "a,b.txt": (b"Once", False),
        "marks.txt": (b"\xef\xbb\xbfOnce\r\n\r\nupon\r\n", False), "category.jsonl": (b'{"prompt": "a", "category": {"x": 1}}\n',
        False),
        "many.txt": (b"a\n\n" * 200_000, False),
    }
    says = {"empty.jsonl": ["no prompt"], "empty.txt": ["no prompt"], "long.txt": ["context"]}
    for name, (data, refused) in suites.items():
        yield case(f"prompts: {name}", [*bench, "--warm-ups", "0", "--suite", f"{{dir}}/{name}"],
            REFUSES if refused else SURVIVES,
                   says.get(name, [name]) if refused else [], prepare=put(name, data), memory=4 << 30)
    sweeps = {
        "empty": ("", None), "no tables": ("model = 'x'", None), "an unknown key": ("[[sweep]]\nspeed = 3", "speed"),
        "a table for a list": ("[sweep]\nmethod = 'pearl'", None),
        "a number for a list": ("sweep = 3", None),
        "nested lists": ("[[sweep]]\ndraft-tokens = [[1]]", "draft-tokens"),
        "a wrong type": ("[[sweep]]\nmethod = 3", "method"), "an unknown method": ("[[sweep]]\nmethod = 'nope'", "nope"),
        "10^12 configurations": ("[[sweep]]\n" + "\n".join(f"{key} = {list(range(1, 10001))}" for key in ("draft-tokens", "lp",
        "temperature")), None),
        "a model of a number": ("model = 3\n[[sweep]]\ndraft-tokens = 2", "model"),
        "the same twice": ("[[sweep]]\ndraft-tokens = 2\n[[sweep]]\ndraft-tokens = 2", None),
        "a peer without command": ("[[peer]]\nname = 'x'", None),
        "a peer that is absent": ("[[sweep]]\ndraft-tokens = 2\n[[peer]]\nname = 'x'\ncommand = ['/absent']", None),
        "a peer that says nothing": ("[[sweep]]\ndraft-tokens = 2\n[[peer]]\nname = 'x'\ncommand = ['true']", None),
        "a peer that says yes": ("[[sweep]]\ndraft-tokens = 2\n[[peer]]\nname = 'x'\ncommand = ['yes']", None),
        "a peer that shouts": ("[[sweep]]\ndraft-tokens = 2\n[[peer]]\nname = 'x'\ncommand = ['cat', '/dev/zero']", None),
    }
    for name, (text, word) in sweeps.items():
        yield case(f"sweep file: {name}", [*bench, "--sweep", "{dir}/sweep.toml"], REFUSES if word else SURVIVES,
            [word] if word else [],
                   prepare=put("sweep.toml", text), memory=4 << 30)

    def resumed(name, change, codes=(0, 1), says=(), extra=()):
        def run(runner, folder):
            wrong = finish(start(runner, folder, bench), codes=(0,))
            change(folder / "out")
            return wrong or finish(start(runner, folder, [*bench, *extra]), codes=codes, says=says) or tidy(runner, folder)
        return running(f"a comparison resumes: {name}", run)

    def answers(change):
        return lambda out: (out / "answers.jsonl").write_bytes(change((out / "answers.jsonl").read_bytes()))
    yield resumed("a cut line", answers(lambda data: data[:-40]), codes=(0,))
    yield resumed("a cut first line", answers(lambda data: data[:100]), says=["answers"])
    yield resumed("nothing", answers(lambda data: b""))
    yield resumed("garbage at the end", answers(lambda data: data + b"\xff\xfe{{{\n"), says=["answers"])
    yield resumed("garbage in the middle", answers(lambda data: data.replace(b'"tokens"', b'"t\xffkens"', 2)), says=["answers"])
    yield resumed("every line twice", answers(lambda data: b"".join(line + line for line in data.splitlines(True))))
    yield resumed("lines in another order",
        answers(lambda data: b"".join(data.splitlines(True)[:1] + data.splitlines(True)[:0:-1])))
    yield resumed("negative times", answers(lambda data: re.sub(rb'(_ns|_ms)":(\d)', rb'\1":-\2', data)), says=["answers"])
    yield resumed("huge numbers", answers(lambda data: re.sub(rb'":\d+([,}])', rb'":1e400\1', data)), says=["answers"])
    yield resumed("other options", lambda out: None, codes=(1,), says=["another"], extra=["--draft-tokens", "3"])
    yield resumed("a folder for the summary", lambda out: ((out / "summary.json").unlink(), (out / "summary.json").mkdir()),
        says=["summary"])
    yield resumed("a folder for the answers", lambda out: ((out / "answers.jsonl").unlink(), (out / "answers.jsonl").mkdir()),
        says=["answers"])
    yield resumed("a link for the report", lambda out: ((out / "report.html").unlink(),
        (out / "report.html").symlink_to("/absent")))
    yield resumed("a pipe for the answers", lambda out: ((out / "answers.jsonl").unlink(), os.mkfifo(out / "answers.jsonl")),
        says=["answers"])
    for name, prepare in {"a file": lambda path: path.write_text("x"),
        "a link to nothing": lambda path: path.symlink_to("/absent/x"),
                          "a pipe": os.mkfifo, "a circle": lambda path: path.symlink_to(path)}.items():
        yield case(f"a comparison in {name}", bench, says=["out"], prepare=lambda _runner, folder,
            prepare=prepare: (prepare(folder / "out"), None)[1])
    for argv, says in (
        (["bench", "kernels", "--outputs", "0"], ["outputs"]), (["bench", "kernels", "--inputs", "0"], ["inputs"]),
        (["bench", "kernels", "--rounds", "0"], ["rounds"]),
        (["bench", "kernels", "--inputs", "7", "--outputs", "3", "--rounds", "1", "--dtype", "q4_k"], []),
        (["bench", "kernels", "--inputs", "1000000000", "--outputs", "1000000000", "--rounds", "1"], []),
        (["bench", "kernels", "--inputs", "18446744073709551615", "--outputs", "2", "--rounds", "1"], []),
        (["bench", "kernels", "--inputs", "32", "--outputs", "1", "--rounds", "1", "--threads", "2"], None),
        (["bench", "quality", "--model", "{target}", "--text", "/dev/null"], ["text is empty"]),
        (["bench", "quality", "--model", "{target}", "--text", "{dir}"], []),
        (["bench", "quality", "--model", "{target}", "--text", "{dir}/text", "--tokens", "0"], ["tokens"]),
        (["bench", "quality", "--model", "{target}", "--text", "{dir}/text", "--window", "0"], ["window"]),
        (["bench", "quality", "--model", "{target}", "--text", "{dir}/text", "--window", "1"], None),
        (["bench", "quality", "--model", "{target}", "--text", "{dir}/text", "--window", "18446744073709551615"], None),
        (["bench", "quality", "--model", "{target}", "--text", "{dir}/text", "--tokens", "1"], None),
        (["bench", "quality", "--model", "{target}", "--text", "{dir}/text", "--draft-model", "{exportable}"], []),
        (["bench", "quality", "--model", "{target}", "--text", "{dir}/text", "--dtype", "all", "--tokens", "20"], None),
        (["devices", "--model", "{target}", "--past", "1000000000"], None), (["devices", "--model", "{target}", "--rounds", "0"],
        None),
        (["devices", "--model", "{target}", "--past", "18446744073709551615", "--rounds", "1"], None),
        (["devices", "--past", "3"], None),
        (["analyze", "layers", "--model", "{exportable}", "--lp", "0"], ["lp"]),
        (["analyze", "layers", "--model", "{exportable}", "--tokens", "0"], ["tokens"]),
        (["analyze", "layers", "--model", "{exportable}", "--rows", "0"], ["rows"]),
        (["analyze", "layers", "--model", "{exportable}", "--rows", "1000000000", "--rounds", "1"], ["rows"]),
        (["analyze", "layers", "--model", "{exportable}", "--target", "{hub}"], []),
        (["analyze", "layers", "--model", "{exportable}", "--layer-groups", "0-99999999999"], ["layer-groups"]),
        (["analyze", "layers", "--model", "{exportable}", "--least-overlap", "2", "--search", "{dir}/groups"], ["least-overlap"]),
        (["analyze", "layers", "--model", "{exportable}", "--least-overlap", "0.5"], None),
        (["analyze", "layers", "--model", "{exportable}", "--limit", "0"], ["limit"]),
        (["export", "--model", "{gguf}", "--gguf", "{dir}/b.gguf"], None), (["export", "--model", "{llama2c}", "--gguf",
        "{dir}/b.gguf"], None),
        (["export", "--model", "{exportable}", "--gguf", "{dir}/b.gguf", "--importance", "{dir}/text"], ["importance"]),
        (["export", "--model", "{exportable}", "--gguf", "{dir}/b.gguf", "--type", "q2_k", "--importance", "{dir}/text"], None),
        (["export", "--model", "{exportable}", "--gguf", "{dir}/b.gguf", "--type", "q2_k", "--importance", "/dev/null"],
        ["importance"]),
        (["export", "--model", "{exportable}", "--gguf", "{dir}/b.gguf", "--type", "q2_k", "--importance", "{dir}"], []),
        (["export", "--model", "{exportable}", "--gguf", ""], ["gguf"]), (["export", "--model", "{exportable}", "--gguf", "-"],
        None),
        (["export", "--model", "{exportable}", "--gguf", "{dir}/text/b.gguf"], ["text"]),
        (["export", "--model", "{exportable}", "--gguf", "{dir}/x/"], ["x"]),
    ):
        yield case(" ".join(argv), argv, SURVIVES if says is None else REFUSES, says or [],
            prepare=put("text", b"Once upon a time there was a fox. " * 9), memory=8 << 30)
    pair = {"layers": "2", "hidden": "64", "intermediate": "96", "heads": "2", "kv-heads": "1", "vocab-size": "300",
        "prompts": "2", "max-tokens": "8", "tolerance": "0.5"}
    for option, values in {
        "layers": ["0", "1", "18446744073709551615", "1000000000"], "draft-layers": ["0", "2", "99"],
        "hidden": ["0", "1", "3", "63", "4294967296", "18446744073709551615"],
        "intermediate": ["0", "1", "18446744073709551615"], "heads": ["0", "3", "64", "1000000"], "kv-heads": ["0", "3"],
        "vocab-size": ["0", "257", "18446744073709551615"],
        "context": ["0", "1", "4", "18446744073709551615"], "acceptance": ["-1", "0", "1", "1.5", "nan"],
        "tolerance": ["0", "-1", "nan", "inf"], "temperature": ["-1", "nan", "1e30"],
        "fuzzy-overlap": ["-1", "2", "nan", "0"], "prompts": ["0", "18446744073709551615"], "max-tokens": ["0", "100000"],
        "gguf": ["q4_k", "bf16,bf16", "", "q8_0"], "seed": ["18446744073709551615"],
    }.items():
        for value in values:
            argv = ["make-pair", "--out", "{dir}/pair", *[f"--{key}={word}" for key, word in {**pair, option: value}.items()]]
            yield case(f"make-pair --{option}={value}", argv, SURVIVES,
                       ["tokens" if option == "max-tokens" else option.split("-")[0]], memory=8 << 30,
                       check=lambda runner, folder: tidy(runner, folder))
    run = ["simulate", "run"]
    for option, values in {
        "acceptance": ["2", "-0.1", "nan", "0", "1"], "draft-ms": ["-1", "nan", "inf", "1e308", "0", "1e-300"],
        "target-ms": ["0", "-1", "nan", "1e308", "1e-300", "1e15"],
        "max-tokens": ["0", "1000000000000", "18446744073709551615", "3000000"],
        "draft-tokens": ["1000000000", "18446744073709551615", "100000"], "row-ms": ["-1", "1e308", "nan"],
        "targets": ["0", "1000000000", "300"], "drafters": ["0", "1000000000", "300"], "layers": ["0", "1000000000000"],
        "link-ms": ["-1", "1e308", "1e300"], "layer-parallel": ["1000000000"],
        "draft-mlp-ms": ["3", "nan"], "target-first-ms": ["-1", "0"], "calibration": ["/absent", "/dev/null", "{dir}"],
        "trace": ["/absent/x", "{dir}", ""], "seed": ["-1"],
    }.items():
        for value in values:
            for method in ("dsi", "pearl") if option in ("targets", "drafters", "draft-tokens", "max-tokens",
                "draft-ms") else ("speculative",):
                yield case(f"simulate {method} --{option}={value}", [*run, "--method", method, f"--{option}={value}"], SURVIVES,
                           {"trace": ["write" if value else "trace"], "calibration": [value if value[:1] == "/" else option]}.get(
                               option, [option.split("-")[0]]), memory=8 << 30)
    for name, text, word in (
        ("empty", "", None), ("an unknown option", "speed = 3", "speed"), ("a step of zero",
        "acceptance = { from = 0, to = 1, step = 0 }", "acceptance"),
        ("a step backwards", "acceptance = { from = 0, to = 1, step = -0.1 }", "acceptance"),
        ("a range backwards", "acceptance = { from = 1, to = 0, step = 0.1 }", "acceptance"),
        ("a step of NaN", "acceptance = { from = 0, to = 1, step = nan }", "acceptance"),
        ("a range without end", "target-ms = { from = 0, to = inf, step = 1 }", "target-ms"),
        ("10^15 steps", "target-ms = { from = 1, to = 2, step = 1e-15 }", None),
        ("10^18 steps", "target-ms = { from = 1, to = 2, steps = 1000000000000000000 }", None),
        ("no steps", "target-ms = { from = 1, to = 2, steps = 0 }", "target-ms"),
        ("step and steps", "target-ms = { from = 1, to = 2, step = 1, steps = 2 }", "target-ms"),
        ("no end", "target-ms = { from = 1 }", "target-ms"), ("an empty list", "target-ms = []", "target-ms"),
        ("nested lists", "target-ms = [[1]]", "target-ms"),
        ("mixed lists", "target-ms = [1, 'x']", "target-ms"), ("no repeats", "repeats = 0", "repeats"),
        ("repeats below zero", "repeats = -1", "repeats"),
        ("a trace", "trace = 'x'", "trace"), ("real time", "real-time = true", "real-time"),
        ("the same twice", "acceptance = [0.5, 0.5, 0.50]", None), ("halves of tokens", "draft-tokens = 1.5", "draft-tokens"),
        ("a range of methods", "method = { from = 'dsi', to = 'pearl', step = 1 }", "method"),
        ("a threshold", "acceptance = { from = 0, to = 1, step = 0.3333333333333333 }", None),
    ):
        yield case(f"grid: {name}", ["simulate", "sweep", "{dir}/grid.toml"], REFUSES if word else SURVIVES,
            [word] if word else [], prepare=put("grid.toml", text), memory=4 << 30)

    # It says how long it will take, and can be interrupted.
    yield case("grid: 10^12 configurations", ["simulate", "sweep", "{dir}/grid.toml"], INTERRUPTED, memory=4 << 30, prepare=put(
        "grid.toml", "".join(f"{key} = {{ from = 1, to = 10000, step = 1 }}\n" for key in ("target-ms", "draft-ms",
        "draft-tokens"))),
        signal=signal.SIGINT, after=5)

    def table(name, change):
        def run(runner, folder):
            (folder / "grid.toml").write_text("acceptance = [0.2, 0.5, 0.8]\n")
            wrong = finish(start(runner, folder, ["simulate", "sweep", "{dir}/grid.toml"]), codes=(0,))
            path = folder / "grid.csv"
            full = path.read_bytes()
            changed = change(full)
            path.write_bytes(changed)
            process = start(runner, folder, ["simulate", "sweep", "{dir}/grid.toml"])
            wrong = wrong or finish(process, says=["grid.csv"]) or tidy(runner, folder)
            if wrong:
                return wrong
            after = path.read_bytes()
            if process.returncode:
                return None if after == changed else "the refused table changed"
            return None if sorted(after.splitlines()) == sorted(full.splitlines()) else f"another table: {after[-300:]}"
        return running(f"a table of a sweep: {name}", run)
    yield table("complete", lambda data: data)
    yield table("a cut line", lambda data: data[:-20])
    yield table("no line break at the end", lambda data: data[:-1])
    yield table("a cut header", lambda data: data[:30])
    yield table("empty", lambda data: b"")
    yield table("Windows lines", lambda data: data.replace(b"\n", b"\r\n"))
    yield table("a missing line", lambda data: b"".join(data.splitlines(True)[:2] + data.splitlines(True)[3:]))
    yield table("another header", lambda data: data.replace(b"draft-ms", b"draft-mx", 1))
    yield table("a foreign line", lambda data: data + b"1,2,3\n")
    yield table("NULs after a crash", lambda data: data[:-50] + b"\0" * 50)
    for argv, says in (
        (["heatmaps", "--steps", "0"], ["steps"]), (["heatmaps", "--steps", "1", "--lookaheads", "1"], None),
        (["heatmaps", "--lookaheads", "0"], ["lookaheads"]),
        (["heatmaps", "--steps", "18446744073709551615"], ["steps"]), (["heatmaps", "--steps", "2", "--lookaheads", "2",
        "--threads", "0"], ["threads"]),
        (["heatmaps", "--steps", "2", "--lookaheads", "2", "--threads", "1000000"], None),
        (["heatmaps", "--steps", "2", "--lookaheads", "2", "--repeats", "0"], ["repeats"]),
        (["heatmaps", "--steps", "2", "--lookaheads", "2", "--max-tokens", "0"], ["max-tokens"]),
    ):
        yield case(f"simulate {' '.join(argv)}", ["simulate", *argv, "--out", "{dir}/table.csv"],
            SURVIVES if says is None else REFUSES, says or [], memory=8 << 30)
    for argv, says in (
        (["paper", "pearl-1", "--texts", "0"], ["texts"]),
        (["paper", "nope"], ["pearl-1"]), (["paper", "dsi-e", "--real-time"], ["real-time"]),
        (["calibrate", "--model={hub}", "--draft-model={gguf}/absent"], ["absent"]),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "--rounds=0"], ["rounds"]),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "--prompts=0"], ["prompts"]),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "--check="], ["check"]),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "--check=1000000"], ["check"]),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "--prompt-tokens=100000"], ["prompt"]),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "-n=0"], ["max-tokens"]),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "-n=100000"], []),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "--out", "{dir}"], []),
        (["calibrate", "--model={hub}", "--draft-model={hub}", "--out", "/absent/x"], ["/absent"]),
    ):
        yield case(f"simulate {' '.join(argv)}", ["simulate", *argv], REFUSES, says)
    for name, text in (("empty", ""), ("other keys", "a = 1"), ("a version", "version = 'x'"), ("no times", "[target]\n"),
        ("random bytes", "\0\1\2")):
        yield case(f"a calibration: {name}", [*run, "--calibration", "{dir}/c.toml"], REFUSES, ["c.toml"],
            prepare=put("c.toml", text))


@contextlib.contextmanager
def hub(answer):
    """A hub whose answers `answer(path, port)` gives: a status, headers and a body, or a function of the socket."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            given = answer(self.path, self.server.server_port)
            with contextlib.suppress(OSError):
                if callable(given):
                    return given(self.connection)
                status, headers, body = given
                self.send_response(status)
                for key, value in {"Content-Length": len(body), **headers}.items():
                    self.send_header(key, str(value))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
        do_HEAD = do_GET

        def log_message(self, *_):
            pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as site:
        site.daemon_threads, site.block_on_close = True, False
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site.server_port, asked
        site.shutdown()


def hubs():
    commit = "0" * 40

    def listing(names, sha=commit):
        return (200, {},
            json.dumps({"id": "owner/name", "sha": sha, "siblings": [{"rfilename": name} for name in names]}).encode())

    def files(names, sha=commit, body=b"{}", headers=None):
        head = {"ETag": '"' + "0" * 40 + '"', "X-Repo-Commit": sha, **(headers or {})}
        return lambda path, _port: listing(names, sha) if "/api/" in path else (200, head, body)

    def endless(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"[" * 65536)

    def headers(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for _ in range(200_000):
            connection.sendall(b"X-A: " + b"a" * 500 + b"\r\n")
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    answers = {
        "garbage": lambda p, port: (200, {}, b"\x00\xff" * 500), "a web page": lambda p,
        port: (200, {"Content-Type": "text/html"}, b"<html>log in</html>"),
        "null": lambda p, port: (200, {}, b"null"), "no files": lambda p, port: listing([]), "names of numbers": lambda p,
        port: (200, {}, b'{"sha": 3, "siblings": [3]}'),
        "status 401": lambda p, port: (401, {}, b"{}"), "status 404": lambda p, port: (404, {}, b"{}"), "status 429": lambda p,
        port: (429, {"Retry-After": "99999"}, b"{}"),
        "status 500": lambda p, port: (500, {}, b"\xff"), "status 200 and nothing": lambda p, port: (200, {}, b""),
        "a circle": lambda p, port: (302, {"Location": p}, b""),
        "a way to itself and back": lambda p, port: (307, {"Location": f"http://127.0.0.1:{port}{p}x"}, b""),
        "a way to a file": lambda p, port: (302, {"Location": "file:///etc/passwd"}, b""),
        "a way to nowhere": lambda p, port: (302, {}, b""), "no end": lambda p, port: endless, "headers without end": lambda p,
        port: headers, "a hang-up": lambda p, port: lambda connection: connection.close(),
        "half an answer": lambda p,
        port: lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
        "deep JSON": lambda p, port: (200, {}, b"[" * 200_000), "empty files": files(names, body=b""),
        "files of braces": files(names),
        "files of another commit": files(names, headers={"X-Repo-Commit": "1" * 40}),
        "no ETag": files(names, headers={"ETag": ""}), "an ETag that is a path": files(names,
        headers={"ETag": '"../../../evil"'}),
        "a commit that is a path": files(names, sha="../../../../evil"), "a commit that is absolute": files(names,
        sha="/tmp/evil-forerun"), "an empty commit": files(names, sha=""),
        "files above the folder": files(["config.json", "../../../../evil", "tokenizer.json", "model.safetensors"]),
        "absolute files": files(["config.json", "/tmp/evil-forerun", "model.safetensors"]),
        "files with NULs": files(["config.json", "model\0.safetensors", "tokenizer.json"]),
        "files of 10^18 bytes": files(names, headers={"X-Linked-Size": 10**18}),
        "a length of 10^18": files(names, headers={"Content-Length": 10**18}),
        "a length below zero": files(names, headers={"Content-Length": -1}), "two configurations": files([*names, "config.json"]),
        "100000 files": files([f"model-{i:05}-of-100000.safetensors" for i in range(100_000)] + names),
        "pickles": files(["config.json", "pytorch_model.bin", "tokenizer.json"]),
        "an index above the folder": files(["config.json", "model.safetensors.index.json", "tokenizer.json"],
        body=b'{"weight_map": {"a": "../../../../evil"}}'),
        "files that break off": lambda p, port: listing(names) if "/api/" in p else (lambda connection: connection.sendall(
            b'HTTP/1.1 200 OK\r\nETag: "' + b"0" * 40 + b'"\r\nX-Repo-Commit: ' + b"0" * 40
            + b"\r\nContent-Length: 5000\r\n\r\n{")),
    }
    for name, answer in answers.items():
        def run(runner, folder, answer=answer):
            with hub(answer) as (port, _asked):
                process = start(runner, folder, ["generate", "-n", "4", "-p", "a", "--model", "owner/name"], {
                    "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(folder / "a/b/c/hub"), "HF_TOKEN": "secret-token",
                    "HF_HUB_CACHE": None},
                    before=limited(resource.RLIMIT_AS, 4 << 30))
                wrong = finish(process, codes=(1,), says=["owner/name"])
            evil = [path for path in folder.rglob("*") if "evil" in path.name] + [path for path in ("/tmp/evil-forerun",
                "/tmp/evil") if os.path.exists(path)]
            outside = [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(folder / "a/b/c/hub")]
            return wrong or (f"written outside of the cache: {evil + outside}" if evil or outside else None)
        yield running(f"a hub with {name}", run)

    def elsewhere(runner, folder):
        seen = []

        class Thief(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                seen.append(self.headers.get("Authorization"))
                self.send_error(404)
            do_HEAD = do_GET

            def log_message(self, *_):
                pass
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Thief) as thief:
            threading.Thread(target=thief.serve_forever, daemon=True).start()
            with hub(lambda path, _port: (302, {"Location": f"http://localhost:{thief.server_port}{path}"}, b"")) as (port, _):
                wrong = finish(start(runner, folder, ["generate", "-p", "a", "--model", "owner/name"], {
                    "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(folder / "hub"), "HF_TOKEN": "secret-token"}),
                    codes=(1,))
            thief.shutdown()
        return wrong or ("the token went to another host" if any(seen) else None)
    yield running("a hub that sends on to another host", elsewhere)
    for name, word in {"a revision of dots": "owner/name@../../x", "a revision of a query": "owner/name@main?x=1#y",
        "an empty revision": "owner/name@", "a quantisation of dots": "owner/name:../../x",
                       "an owner of dots": "../name", "spaces": "owner/na me", "a percent": "owner/na%2e%2e",
                       "a newline": "owner/na\nme", "three parts": "a/b/c", "two signs": "a/b@c@d", "emoji": "owner/\U0001f98a",
                       "2000 letters": "owner/" + "x" * 2000}.items():
        def run(runner, folder, word=word):
            with hub(lambda path, _port: (404, {}, b"{}")) as (port, asked):
                wrong = finish(start(runner, folder, ["generate", "-n", "4", "-p", "a", "--model", word], {
                    "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(folder / "hub"), "HF_HUB_CACHE": None}), codes=(1,))
            odd = [path for path in asked if ".." in path.replace("%2E", ".") or " " in path]
            return wrong or (f"asked for {odd}" if odd else None)
        yield running(f"a hub id with {name}", run)


def terminal(runner, folder, argv, keys, env=None, size=(24, 80), stop=None, codes=(0, 1, 2, 3), says=()):
    """Runs the program in a terminal and types `keys`, pairs of seconds and bytes; returns what is wrong."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    before = termios.tcgetattr(slave)

    def session():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    process = start(runner, folder, argv, {"HOME": str(folder), "XDG_STATE_HOME": None, "TERM": "xterm", **(env or {})},
        before=session,
                    stdin=slave, stdout=slave, stderr=slave)
    shown, began, keys, hung_up = b"", time.monotonic(), list(keys), False
    due = began + (keys[0][0] if keys else 0)
    while process.poll() is None:
        if time.monotonic() - began > LIMIT:
            process.kill()
            process.wait()
            return f"no end after {LIMIT} s: {shown[-300:]!r}"
        if not hung_up and select.select([master], [], [], 0.02)[0]:
            with contextlib.suppress(OSError):
                shown += os.read(master, 65536)
        if keys and time.monotonic() >= due:
            word = keys.pop(0)[1]
            due = time.monotonic() + (keys[0][0] if keys else 0)
            if word is None:
                os.close(slave), os.close(master)
                hung_up = True
            elif isinstance(word, int):
                process.send_signal(word)
            elif isinstance(word, tuple):
                fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *word, 0, 0))
                process.send_signal(signal.SIGWINCH)
            else:
                while word:
                    if select.select([], [master], [], 0)[1]:
                        word = word[os.write(master, word[:512]):]
                    if select.select([master], [], [], 0.01)[0]:
                        shown += os.read(master, 65536)
                    if time.monotonic() - began > LIMIT:
                        break
    if hung_up:
        return judge(process.returncode, "", (*codes, -1, 129)) if process.returncode not in (1, 2) else None
    while select.select([master], [], [], 0.05)[0]:
        shown += os.read(master, 65536)
    after = termios.tcgetattr(slave)
    os.close(slave), os.close(master)
    wrong = b"panicked" in shown or process.returncode not in codes
    if wrong or any(word not in shown for word in says):
        return f"code {process.returncode}: {shown[-400:]!r}"
    return "the terminal's settings are not restored" if after[:4] != before[:4] else None


def terminals():
    chat = ["chat", "-n", "6"]
    for name, keys in {
        "Ctrl-D": [(0.4, b"\x04")], "Ctrl-C and Ctrl-D": [(0.4, b"\x03"), (0.2, b"\x04")],
        "ten Ctrl-C": [(0.3, b"\x03")] * 10 + [(0.2, b"\x04")],
        "half a line and Ctrl-D": [(0.4, b"Hel"), (0.1, b"\x04"), (0.1, b"\n"), (0.5, b"\x04")],
        "arrows": [(0.4, b"\x1b[A\x1b[B\x1b[C\x1b[D\x1b[H\x1b[F\n"), (0.5, b"\x04")],
        "broken escapes": [(0.4, b"\x1b[999999999999999999A\x1b[;;;;\x1b]0;x\x07\x1bOP\n"), (0.5, b"\x04")],
        "binary": [(0.4, bytes(range(128, 256)) + b"\n"), (0.5, b"\x04")],
        "a paste": [(0.4, b"\x1b[200~one\ntwo\nthree\x1b[201~\n"), (0.8, b"\x04")],
        "an open paste": [(0.4, b"\x1b[200~one\ntwo\n"), (0.4, b"\x04"), (0.2, b"\x1b[201~\n"), (0.5, b"\x04")],
        "4000 letters": [(0.4, b"word " * 800 + b"\n"), (1, b"\x04")],
        "50000 letters in a paste": [(0.4, b"\x1b[200~" + b"word " * 10_000 + b"\x1b[201~\n"), (1, b"\x04")],
        "combining marks": [(0.4, ("e" + "\u0301" * 500 + "\U0001f468\u200d\U0001f469" * 50 + "\n").encode()), (0.6, b"\x04")],
        "deleting nothing": [(0.4, b"\x7f" * 200 + b"\x15\x17\x0b\x19" * 50 + b"\n"), (0.5, b"\x04")],
        "tabs": [(0.4, b"/\t\t/m\t\t\n"), (0.5, b"\x04")],
        "searching": [(0.4, b"\x12abc\x12\x12\x07\n"), (0.5, b"\x04")], "backslashes": [(0.4, b"a\\\nb\\\n\\\n"), (0.3, b"\n"),
        (0.5, b"\x04")],
        "suspending": [(0.4, b"\x1a"), (0.3, signal.SIGCONT), (0.2, b"\n"), (0.3, b"\x04")], "SIGTERM": [(0.5, signal.SIGTERM)],
        "SIGHUP": [(0.5, signal.SIGHUP)], "SIGINT": [(0.4, signal.SIGINT)] * 3 + [(0.3, b"\x04")],
        "hanging up": [(0.4, b"Hello\n"), (0.1, None)], "hanging up at once": [(0, None)],
        "resizing": [(0.3, b"Hello " * 30), *[(0.05, (rows, columns)) for rows, columns in ((1, 1), (0, 0), (500, 3), (24, 80))],
        (0.1, b"\n"), (0.5, b"\x04")],
    }.items():
        codes = {"SIGTERM": (0, 1, -15, 143), "SIGHUP": (0, 1, -1, 129), "SIGINT": (0, 1, -2, 130), "ten Ctrl-C": (0, 1, -2, 130),
            "hanging up": (0, 1, -1, 129)}.get(name, (0,))
        if "hanging" in name:
            codes = (0, 1, -1, 129, 130)
        yield running(f"terminal: {name}", lambda runner, folder, keys=keys,
            codes=codes: terminal(runner, folder, chat, keys, codes=codes))
    for name, env, size in (
        ("without size", {}, (0, 0)), ("of one cell", {}, (1, 1)), ("of one column", {}, (24, 1)),
        ("of 65535 cells", {}, (65535, 65535)), ("that is dumb", {"TERM": "dumb"}, (24, 80)),
        ("of no kind", {"TERM": None}, (24, 80)),
        ("of an unknown kind", {"TERM": "x" * 3000}, (24, 80)), ("without colours", {"NO_COLOR": "1", "TERM": "vt52"}, (2, 7)),
        ("in C", {"LC_ALL": "C"}, (24, 80)),
    ):
        yield running(f"a terminal {name}", lambda runner, folder, env=env, size=size: terminal(
            runner, folder, chat, [(0.4, "Once é \U0001f98a upon a time there was a fox that lived\n".encode()),
            (0.7, b"/help\n"), (0.3, b"\x04")], env, size, codes=(0,)))
        yield running(f"drafts in a terminal {name}", lambda runner, folder, env=env, size=size: terminal(
            runner, folder, ["generate", "-p", "Once", "-n", "20", "--show-drafts"], [], env, size, codes=(0,)))

    def history(make):
        def run(runner, folder):
            (folder / ".local/state/forerun").mkdir(parents=True)
            path = folder / ".local/state/forerun/history"
            make(path)
            wrong = terminal(runner, folder, chat, [(0.5, b"Hello\n"), (0.5, b"\x1b[A\n"), (0.5, b"\x04")], codes=(0,))
            return wrong
        return run
    for name, make in {
        "a folder": lambda path: path.mkdir(), "a pipe": os.mkfifo, "a circle": lambda path: path.symlink_to(path),
        "a device": lambda path: path.symlink_to("/dev/full"), "without end": lambda path: path.symlink_to("/dev/zero"),
        "Latin-1": lambda path: path.write_bytes(b"caf\xe9\n" * 99), "NULs": lambda path: path.write_bytes(b"\0" * 9999),
        "50 MB": lambda path: path.write_bytes(b"a line of history\n" * 3_000_000),
        "one long line": lambda path: path.write_bytes(b"x" * 20_000_000),
        "escapes": lambda path: path.write_bytes(b"\x1b]0;x\x07\x1b[2J\n" * 9),
    }.items():
        yield running(f"a history that is {name}", history(make))
    yield running("a history in a folder that is a file", lambda runner, folder: ((folder / "state").write_text(""), terminal(
        runner, folder, chat, [(0.5, b"Hello\n"), (0.6, b"\x04")], {"XDG_STATE_HOME": str(folder / "state")}, codes=(0,)))[1])
    yield running("a secret history", lambda runner, folder: terminal(runner, folder, chat, [(0.5, b"Hello\n"), (0.5, b"\x04")],
        codes=(0,)) or next(
        (f"others may read {path}" for path in folder.rglob("history") if path.stat().st_mode & 0o077), None))

    def saved(word, prepare=lambda folder: None, kept=()):
        def run(runner, folder):
            prepare(folder)
            before = {name: (folder / name).read_bytes() for name in kept}
            process = start(runner, folder, chat, {"HOME": str(folder)}, stdin=subprocess.PIPE)
            wrong = finish(process, b"Once\n/save " + word + b"\n/stats\nAgain\n", codes=(0, 1)) or tidy(runner, folder)
            changed = [name for name in kept if (folder / name).read_bytes() != before[name]]
            return wrong or (f"changed: {changed}" if changed else None)
        return run
    for name, word, prepare, kept in (
        ("nowhere", b"", lambda folder: None, ()), ("a folder", b".", lambda folder: None, ()),
        ("an absent folder", b"a/b/c", lambda folder: None, ()), ("spaces", b"a b  c", lambda folder: None, ()),
        ("a device", b"/dev/full", lambda folder: None, ()),
        ("a long name", b"x" * 300, lambda folder: None, ()), ("Latin-1", b"caf\xe9", lambda folder: None, ()),
        ("a pipe", b"pipe", lambda folder: os.mkfifo(folder / "pipe"), ()),
        ("a link", b"link", lambda folder: ((folder / "real").write_text("precious"), (folder / "link").symlink_to("real")),
        ("real",)), ("quotes", b"'a' \"b\"", lambda folder: None, ()),
    ):
        yield running(f"/save to {name}", saved(word, prepare, kept))
    for name, text in {
        "/system without end": b"/system " + b"word " * 200_000 + b"\nHello\n",
        "a message beyond the context": b"word " * 100_000 + b"\nHello\n", "100 MB without a line break": b"x" * 100_000_000,
        "/method of nonsense": b"/method\n/method x\n/method dsi\nHello\n/method pearl\nHello\n/method speculative\nHello\n",
        "/METHOD": b"/METHOD pearl\n/ method\n/method  pearl \n",
        "slashes": b"//\n///\n//text\n/\n", "a backslash at the end": b"Hello\\", "only backslashes": b"\\\n" * 2000,
        "10000 commands": b"/stats\n/reset\n/system x\n/system\n" * 2500, "half a character": "Hellé".encode()[:-1] + b"\n",
        "Windows lines": b"/help\r\nHello\r\n/quit\r\n", "old Mac lines": b"Hello\rHello\r", "/quit and more": b"/quit\nHello\n",
        "/quit with words": b"/quit now\n",
    }.items():
        yield case(f"chat: {name}", ["chat", "-n", "2"], SURVIVES, stdin=text)


def request(port, data, pause=0, timeout=20, shut=False):
    """Sends raw bytes, piece by piece; returns what comes back until the end or `timeout`."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection, contextlib.suppress(OSError):
        for piece in data if isinstance(data, list) else [data]:
            connection.sendall(piece)
            time.sleep(pause)
        if shut:
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            answer += part
    return answer


def message(path, body, extra="", method="POST"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + extra.encode() + b"\r\n" + body


def loaded(port):
    """Waits for the model, during whose loading the server answers with status 503; returns the port."""
    for _ in range(400):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as response:
            if response.status == 200:
                return port
        time.sleep(0.05)
    raise TimeoutError("the model is not loaded")


def served(name, check, *options, env=None, before=None):
    """Runs `check(port, folder)` with a server, which must answer afterwards."""
    def run(runner, folder):
        if not env and not before:
            with server(runner, folder, *options) as port:
                return check(loaded(port), folder) or healthy(port, folder)
        with open(folder / "log", "w") as log:
            process = start(runner, folder, ["serve", "--port", "0", *options], env, before, stderr=log, text=True)
        try:
            port = loaded(int(process.stdout.readline().rsplit(":", 1)[1]))
            return check(port, folder) or healthy(port, folder)
        finally:
            process.kill()
            process.wait()
    return running(f"server: {name}", run)


def clients():
    completion, chat = "/v1/completions", "/v1/chat/completions"
    base = {"prompt": "Once", "max_tokens": 3}
    talk = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}

    def body(name, path, value, statuses=(200, 400), field=None):
        def check(port, _folder):
            began = time.monotonic()
            status, answer = post(port, path, value, timeout=LIMIT)
            if status not in statuses or time.monotonic() - began > 30:
                return f"status {status} after {time.monotonic() - began:.0f} s: {answer[:300]}"
            if status >= 400:
                error = json.loads(answer)["error"]
                if not error["message"] or len(answer) > 20_000 or field and field not in str(error.get("param")) + error[
                    "message"]:
                    return f"{answer[:300]}"
            return None
        return served(name, check)
    nested = functools.reduce(lambda inner, _: {"type": "object", "properties": {"a": inner}, "required": ["a"]}, range(60),
        {"type": "null"})
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    for name, path, value, statuses in (
        ("a lone surrogate", completion, b'{"prompt": "\\ud800", "max_tokens": 3}', (200, 400)),
        ("surrogates in the wrong order", completion, b'{"prompt": "\\udc00\\ud800", "max_tokens": 3}', (200, 400)),
        ("a surrogate in a stop", completion, b'{"prompt": "a", "stop": "\\ud800", "max_tokens": 3}', (400,)),
        ("the same field twice", completion, b'{"prompt": "a", "max_tokens": 3, "prompt": "b"}', (200, 400)),
        ("a byte-order mark", completion, b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 3}', (200, 400)),
        ("text after the JSON", completion, b'{"prompt": "a", "max_tokens": 3} x', (400,)),
        ("a comment", completion, b'{"prompt": "a", /* b */ "max_tokens": 3}', (400,)),
        ("NaN", completion, b'{"prompt": "a", "temperature": NaN}', (400,)),
        ("1e999", completion, b'{"prompt": "a", "max_tokens": 3, "temperature": 1e999}', (400,)),
        ("-0", completion, b'{"prompt": "a", "max_tokens": 3, "temperature": -0.0, "seed": -0}', (200, 400)),
        ("2 as 2.0", completion, b'{"prompt": "a", "max_tokens": 2.0}', (200, 400)),
        ("deep in an unknown field", completion,
        b'{"prompt": "a", "max_tokens": 3, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", (200, 400)),
        ("100000 unknown fields", completion, json.dumps({**base, **{f"x{i}": i for i in range(100_000)}}).encode(), (200, 400)),
        ("a NUL in the prompt", completion, {**base, "prompt": "a\0b"}, (200, 400)),
        ("a prompt of special tokens", completion, {**base, "prompt": "<s></s>" * 50}, (200, 400)),
        ("1000 prompts", completion, {**base, "prompt": ["a"] * 1000}, (200, 400, 429)),
        ("8 choices of 8 prompts", completion, {**base, "prompt": ["a"] * 8, "n": 8}, (200, 400, 429)),
        ("128 choices", completion, {**base, "n": 128, "temperature": 1}, (200, 400, 429)),
        ("fewer of more", completion, {**base, "n": 3, "best_of": 2}, (400,)),
        ("the best of a stream", completion, {**base, "best_of": 3, "stream": True}, (400,)),
        ("no tokens", completion, {**base, "max_tokens": 0}, (200, 400)), ("logit biases for all", completion,
        {**base, "logit_bias": {str(i): -100 for i in range(4096)}}, (200, 400)),
        ("the bias of one", completion, {**base, "logit_bias": {"-0": 1, "00": 1, "+1": 1}}, (200, 400)),
        ("a stop of 1 MB", completion, {**base, "stop": "x" * 1_000_000}, (200, 400)),
        ("an empty stop", completion, {**base, "stop": [""]}, (200, 400)), ("a prompt of 10^6 tokens", completion,
        {**base, "prompt": [1] * 1_000_000}, (400,)),
        ("a seed at the limit", completion, {**base, "seed": 2**64 - 1, "n": 4, "temperature": 1}, (200, 400)),
        ("speculation of tables", completion, {**base, "speculation": {"method": {"method": "pearl"}}}, (400,)),
        ("speculation by dsi", completion, {**base, "speculation": {"method": "dsi"}}, (200, 400)),
        ("a schema in a circle", chat, {**talk, "response_format": {"type": "json_schema",
        "json_schema": {"name": "a", "schema": circle}}}, (400,)), ("a schema of 60 levels", chat,
        {**talk, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": nested}}}, (200, 400)),
        ("a schema of text", chat, {**talk, "response_format": {"type": "json_schema", "json_schema": "x"}}, (400,)),
        ("no schema", chat, {**talk, "response_format": {"type": "json_schema"}}, (400,)),
        ("an unknown form", chat, {**talk, "response_format": {"type": "xml"}}, (400,)),
        ("a form of text", chat, {**talk, "response_format": "json"}, (400,)),
        ("a schema of 7 MB", chat, {**talk, "json_schema": {"enum": [f"{i:070}" for i in range(90_000)]}}, (200, 400)),
        ("two structures", completion, {**base, "guided_regex": "a", "guided_choice": ["a"]}, (400,)),
        ("no choices", completion, {**base, "guided_choice": []}, (400,)), ("an empty choice", completion,
        {**base, "guided_choice": [""]}, (200, 400)), ("100000 choices", completion,
        {**base, "guided_choice": [f"choice {i}" for i in range(100_000)]}, (200, 400)),
        ("choices of numbers", completion, {**base, "guided_choice": [1, None]}, (400,)),
        ("a regex bomb", completion, {**base, "max_tokens": 50, "guided_regex": "(a|b)*a(a|b){60}"}, (200, 400)),
        ("a regex of counts", completion, {**base, "guided_regex": "((a{1,999}){1,999}){1,999}"}, (200, 400)),
        ("a grammar bomb", completion, {**base, "max_tokens": 200, "grammar": 'root ::= root root | "a" | "t" | " " | ""'},
        (200, 400)), ("a grammar of 5 MB", completion,
        {**base, "grammar": "root ::= " + " | ".join(f'"c{i}"' for i in range(400_000))}, (200, 400)),
        ("a grammar without end", completion, {**base, "max_tokens": 20, "grammar": 'root ::= "a" root'}, (200,)),
        ("a grammar of a number", completion, {**base, "grammar": 3}, (400,)),
        ("a grammar and the end ignored", completion, {**base, "grammar": 'root ::= "a"', "ignore_eos": True}, (400,)),
        ("a tool without name", chat, {**talk, "tools": [{"type": "function", "function": {}}]}, (400,)),
        ("a tool of a number", chat, {**talk, "tools": [3]}, (400,)), ("a tool with a broken schema", chat,
        {**talk, "tool_choice": "required", "tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "nope"}}}]}, (400,)), ("an absent tool", chat,
            {**talk, "tool_choice": {"type": "function", "function": {"name": "g"}},
            "tools": [{"type": "function", "function": {"name": "f"}}]}, (400,)),
        ("a tool required of none", chat, {**talk, "tool_choice": "required"}, (400,)),
        ("the same tool twice", chat, {**talk, "tool_choice": "required", "tools": [{"type": "function",
        "function": {"name": "f"}}] * 2}, (200, 400)), ("a tool named with quotes", chat, {**talk, "tool_choice":
            "required", "tools": [{"type": "function", "function": {"name": '"}\n</tool_call>\0',
                "parameters": {"type": "object"}}}]}, (200, 400)), ("500 tools", chat,
                {**talk, "tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(500)]}, (200, 400)),
        ("an answer of a tool without call", chat, {**talk, "messages": [{"role": "tool", "content": "x", "tool_call_id": "y"}]},
        (200, 400)), ("calls that are no JSON", chat, {**talk, "messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{{{"}}]}]}, (200, 400)),
            ("variables of a template", chat, {**talk, "chat_template_kwargs": {"messages": [], "bos_token": "x" * 9999,
            "__class__": 1}}, (200, 400)), ("variables that are none", chat, {**talk,
            "chat_template_kwargs": [1]}, (400,)), ("an effort of 3", chat, {**talk, "reasoning_effort": 3}, (200, 400)),
            ("content of content", chat, {**talk, "messages": [{"role": "user",
            "content": [{"type": "text", "text": {"a": 1}}]}]}, (400,)), ("content of 10^5 parts", chat, {**talk, "messages": [
            {"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]}, (200, 400)),
            ("too many logprobs", chat, {**talk, "logprobs": True, "top_logprobs": 21}, (400,)),
            ("logprobs of none", chat, {**talk, "top_logprobs": 2}, (200, 400)),
        ("responses: nothing", "/v1/responses", {}, (400,)), ("responses: deep", "/v1/responses", {"input": [[[[[]]]]]}, (400,)),
        ("responses: earlier ones", "/v1/responses", {"input": "a", "previous_response_id": "x"}, (400,)),
        ("responses: an unknown item", "/v1/responses", {"input": [{"type": "nope"}]}, (400,)),
        ("responses: output of no call", "/v1/responses", {"input": [{"type": "function_call_output", "call_id": "x",
        "output": "y"}], "max_output_tokens": 2}, (200, 400)), ("messages: nothing", "/v1/messages", {}, (400,)),
        ("messages: no length", "/v1/messages", {"messages": talk["messages"]}, (200, 400)),
        ("messages: a length below zero", "/v1/messages", {**talk, "max_tokens": -1}, (400,)),
        ("messages: a system of numbers", "/v1/messages", {**talk, "system": [3]}, (400,)),
        ("messages: a picture", "/v1/messages", {**talk, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}]}]}, (400,)),
            ("messages: a tool without schema", "/v1/messages", {**talk, "tools": [{"name": "f"}],
            "tool_choice": {"type": "any"}}, (200, 400)),
        ("messages: counting nothing", "/v1/messages/count_tokens", {}, (400,)),
        ("messages: counting 8 MB", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "word " * 1_600_000}]},
        (200, 400)), ("tokens of surrogates", "/tokenize", b'{"content": "\\udfff"}', (200, 400)),
        ("tokens of 8 MB of spaces", "/tokenize", {"content": " " * 8_000_000}, (200, 400)),
        ("tokens of one word of 8 MB", "/tokenize", {"content": "a" * 8_000_000}, (200, 400)),
        ("tokens of 2 MB of marks", "/tokenize", {"content": "\u0301" * 1_000_000}, (200, 400)),
        ("text of 10^6 tokens", "/detokenize", {"tokens": [5] * 1_000_000}, (200, 400)),
        ("text of half tokens", "/detokenize", {"tokens": [1.5]}, (400,)), ("text of half a character", "/detokenize",
        {"tokens": [200, 201]}, (200, 400)),
    ):
        yield body(name, path, value, statuses)

    def raw(name, data, expected, pause=0, shut=False, options=(), closes=True):
        """`expected`: a pattern of the answer, or None for 50 good answers."""
        def check(port, _folder):
            answer = request(port, data, pause, timeout=20 if closes else 3, shut=shut)
            found = re.search(expected, answer, re.S) if expected else answer.count(b"HTTP/1.1 200") == 50
            return None if found else f"{answer[:300]!r}"
        return served(name, check, *options)
    closing = "Connection: close\r\n"
    one = message(completion, base, closing)
    chunked = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n")
    yield raw("a byte at a time", [one[i:i + 1] for i in range(len(one))], rb"^HTTP/1.1 200", pause=0.005)
    yield raw("the body before it is asked for", message(completion, base, closing + "Expect: 100-continue\r\n"),
        rb"HTTP/1.1 200")
    yield raw("an expectation of nonsense", message(completion, base, closing + "Expect: nonsense\r\n"), rb"HTTP/1.1 (200|417)")
    yield raw("50 requests at once", message(completion, base) * 49 + one, None)
    yield raw("a wrong request behind a right one", message(completion, base) + b"\0\0\0\r\n\r\n",
        rb"^HTTP/1.1 200.*HTTP/1.1 400")
    yield raw("a request in another's body", message(completion, message(completion, base), closing),
        rb"^HTTP/1.1 400(?!.*HTTP/1.1 200)")
    yield raw("two kinds of lengths",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n", rb"^HTTP/1.1 4\d\d(?!.*HTTP/1.1 200)", closes=False)
    yield raw("a compressed body", message(completion, gzip.compress(json.dumps(base).encode()),
        closing + "Content-Encoding: gzip\r\n"), rb"HTTP/1.1 4(00|15)")
    yield raw("a body in chunks of a byte",
        chunked + b"".join(
        b"1\r\n%c\r\n" % byte for byte in json.dumps(base).encode()) + b"0\r\n\r\n", rb"^HTTP/1.1 200")
    yield raw("a trailer of 1 MB",
        chunked + b"2\r\n{}\r\n0\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n", rb"^(HTTP/1.1 4|$)", closes=False)
    yield raw("chunks of 9 MB",
        [chunked, *[b"100000\r\n" + b" " * 2**20 + b"\r\n"] * 9, b"0\r\n\r\n"], rb"^(HTTP/1.1 413|$)")
    yield raw("a client that stops sending", one, rb"^(HTTP/1.1 200|$)", shut=True)
    yield raw("no type of the content", one.replace(b"Content-Type: application/json\r\n", b""), rb"^HTTP/1.1 (200|4\d\d)")
    yield raw("another type of the content", one.replace(b"application/json", b"text/plain; charset=\xff"),
        rb"^HTTP/1.1 (200|4\d\d)")
    for method in ("HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE", "CONNECT", "BREW", "post", "X" * 5000):
        yield raw(f"the method {method[:9]}", message(completion, b"", closing, method), rb"^HTTP/1.1 (200|204|4\d\d|501)",
            closes=False)
    for path in ("http://evil/v1/models", "//v1/models", "/v1/models?x=" + "y" * 5000, "/%00", "/%", "/%2e%2e/%2e%2e/etc/passwd",
        "/v1/models#x", "*", "/\xe9", "/v1/models/" + "x" * 3000):
        yield raw(f"the path {path[:30]}", f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode("latin-1"),
            rb"^HTTP/1.1 (200|4\d\d)")
    for name, value in (("long", "x" * 8000), ("empty", ""), ("of escapes", "\x1b[31m\x07"), ("of another line", "a\tb  c"),
        ("in Latin-1", "\xe9\xff"), ("of JSON", '"}],"x')):
        def check(port, folder, value=value):
            answer = request(port,
                b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: " + value.encode("latin-1") + b"\r\n\r\n")
            lines = [line for line in (folder / "log").read_text(errors="replace").splitlines() if line.startswith("{")]
            for line in lines:
                json.loads(line)
            if "\x1b" in (folder / "log").read_text(errors="replace"):
                return "escapes in the log"
            return None if re.match(rb"HTTP/1.1 (200|400)", answer) else f"{answer[:200]!r}"
        yield served(f"a request id {name}", check, "--log-format", "json")
        yield served(f"a request id {name}, in the text log", check)
    for word in ('a"b\\c', "a\nb", "{{", "é\U0001f98a", "x" * 5000):
        def check(port, _folder, word=word):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
                lines = response.read().decode().splitlines()
            pattern = r'(#.*|[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_]+="([^"\\]|\\[\\"n])*",?)*\})? [-+0-9.eEInfNa]+)?'
            wrong = [line for line in lines if not re.fullmatch(pattern, line)]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as response:
                name = json.load(response)["data"][0]["id"]
            return f"metrics: {wrong[:2]}" if wrong else None if name == word else f"the name is {name!r}"
        yield served(f"a model named {word[:9]!r}", check, "--served-model-name", word)

    def together(name, bomb, path=completion, options=()):
        """Other clients are served while one sends `bomb`."""
        def check(port, _folder):
            def send():
                with contextlib.suppress(OSError):
                    post(port, path, bomb, timeout=LIMIT)
            thread = threading.Thread(target=send)
            thread.start()
            slowest = 0
            for _ in range(10):
                began = time.monotonic()
                status, answer = post(port, completion, base)
                slowest = max(slowest, time.monotonic() - began)
                if status != 200:
                    return f"another client: {status} {answer[:200]}"
            thread.join(LIMIT)
            return f"another client waited {slowest:.0f} s" if slowest > 10 else "the bomb has no end" if thread.is_alive(
                ) else None
        return served(f"another client beside {name}", check, *options)
    yield together("a regex bomb", {**base, "max_tokens": 100, "guided_regex": "(a|b| |t|h|e)*a(a|b| |t|h|e){60}"})
    yield together("a grammar bomb",
        {**base, "max_tokens": 300, "grammar": 'root ::= root root root | root root | "a" | "t" | "h" | "e" | " " | ""'})
    yield together("a large schema", {**base, "json_schema": {"type": "object",
        "properties": {f"p{i}": {"type": "string", "pattern": "^[a-z]{1,99}$"} for i in range(9000)}}})
    yield together("8 MB of tokens", {"content": "ab" * 3_900_000}, "/tokenize")
    yield together("a long template", {"messages": [{"role": "user", "content": "x"}] * 200_000, "max_tokens": 2}, chat)
    yield together("a batch", {**base, "prompt": ["Once"] * 40, "max_tokens": 100, "ignore_eos": True})

    def few_files(port, _folder):
        held = []
        with contextlib.suppress(OSError):
            for _ in range(120):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=2))
        time.sleep(1)
        [connection.close() for connection in held]
        time.sleep(0.5)
    yield served("more connections than files", few_files, env={"A": "b"}, before=limited(resource.RLIMIT_NOFILE, 40))

    def busy(port, folder):
        few_files(port, folder)
        size = (folder / "log").stat().st_size
        return f"a log of {size} bytes" if size > 200_000 else None
    yield served("a short log of too many connections", busy, env={"A": "b"}, before=limited(resource.RLIMIT_NOFILE, 40))

    def ends(name, number, prepare, within, options=()):
        """A server that gets a signal ends `within` seconds, whatever its clients do."""
        def run(runner, folder):
            with open(folder / "log", "w") as log:
                process = start(runner, folder, ["serve", "--port", "0", *options], stderr=log, text=True)
            port = loaded(int(process.stdout.readline().rsplit(":", 1)[1]))
            held = prepare(port)
            process.send_signal(number)
            try:
                process.wait(within)
            except subprocess.TimeoutExpired:
                return f"no end after {within} s"
            finally:
                process.kill()
                process.wait()
                [connection.close() for connection in held]
            return judge(process.returncode, (folder / "log").read_text(), (0, -number, 128 + number))
        return running(f"server: {name}", run)

    def hold(data, count=1):
        def prepare(port):
            held = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
            [connection.sendall(data) for connection in held]
            time.sleep(0.3)
            return held
        return prepare
    stream = message(completion, {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True})
    drain = ("--drain-seconds", "2")
    for number in (signal.SIGTERM, signal.SIGINT):
        for name, data, count in (("silent clients", b"", 5), ("half a header", b"GET / HT", 5),
            ("half a body", message(completion, base)[:-3], 5), ("streams nobody reads", stream, 20),
            ("kept connections", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 5)):
            yield ends(f"{number.name} beside {name}", number, hold(data, count), 15, drain)
    yield ends("SIGHUP", signal.SIGHUP, hold(b""), 15, drain)

    def deaf(runner, folder):
        process = start(runner, folder, ["serve", "--port", "0", "--log-level", "debug"], text=True)
        port = loaded(int(process.stdout.readline().rsplit(":", 1)[1]))
        process.stderr.close(), process.stdout.close()
        try:
            for _ in range(5):
                status, answer = post(port, completion, base)
                if status != 200:
                    return f"status {status}: {answer[:200]}"
            return None if process.poll() is None else f"it ended with {process.returncode}"
        finally:
            process.kill()
            process.wait()
    yield running("server: nobody reads its log", deaf)

    def again(runner, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for _ in range(3):
            process = start(runner, folder, ["serve", "--port", str(port)], stderr=subprocess.DEVNULL)
            line = process.stdout.readline()
            held = hold(stream, 3)(port) if line else []
            process.kill()
            process.communicate()
            [connection.close() for connection in held]
            if not line:
                return "it cannot listen again"
        return None
    yield running("server: killed and started on the same port", again)
    yield served("the same origin twice", lambda port, folder: None, "--cors-origin", "*", "--cors-origin", "*")
    yield served("a cache of one byte", lambda port, folder: None, "--cache-bytes", "1")
    for extra, says in ((["--host", "::1%lo"], ["host"]), (["--host", "1.2.3.4:80"], ["host"]), (["--host", ""], ["host"]),
        (["--cors-origin", "https://x/path"], ["cors-origin"]), (["--log-level", "loud"], ["log"]),
        (["--parallel", "0"], ["parallel"]),
                        (["--request-seconds", "0"], ["request-seconds"]), (["--tool-parser", "nope"], ["tool-parser"]),
                        (["--served-model-name", ""], ["served-model-name"]), (["--api-key", "é"], ["api-key"]),
                        (["--api-key", " "], ["api-key"])):
        yield running(f"serve {' '.join(extra)}", functools.partial(refuses_to_serve, options=extra, says=says))


def cases():
    yield from environments()
    yield from structured()
    yield from configurations()
    yield from paths()
    yield from laboratory()
    yield from hubs()
    yield from terminals()
    yield from clients()
