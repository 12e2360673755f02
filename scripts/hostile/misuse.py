"""Cases that were invented after all others had passed: odd environments, odd files, bombs, and rude clients."""

import gzip
import json
import os
import signal
import socket
import subprocess
import threading

from harness import ANSWERS, REFUSES, SURVIVES, Case
from server import healthy, post, server

AREA = "misuse"
SHORT = ["generate", "-n", "4", "-p", "Hello"]


def environments():
    for name, env in {
        "no home": {"HOME": ""}, "a home that is absent": {"HOME": "/absent"}, "a home that is a file": {"HOME": "/etc/passwd"},
        "the locale C": {"LC_ALL": "C"}, "an unknown locale": {"LC_ALL": "xx_YY.koi8"},
        "an absent folder for temporary files": {"TMPDIR": "/absent"}, "a terminal of no columns": {"COLUMNS": "0"},
        "a terminal of minus one column": {"COLUMNS": "-1"}, "an unknown terminal": {"TERM": "nothing"},
        "colours by force": {"CLICOLOR_FORCE": "1"}, "an empty path": {"PATH": ""},
        "a hub that is absent": {"HF_HOME": "/proc/none"},
    }.items():
        yield Case(AREA, f"generate with {name}", SHORT, ANSWERS, env=env)
    for name, env in {
        "instructions": {"FORERUN_ISA": "z80"}, "a configuration": {"FORERUN_CONFIG": "/absent.toml"},
        "a folder as configuration": {"FORERUN_CONFIG": "/etc"}, "an empty configuration": {"FORERUN_CONFIG": ""},
    }.items():
        yield Case(AREA, f"generate with {name} that cannot be used", SHORT, SURVIVES, env=env)
    for name, env in {
        "port": {"FORERUN_PORT": "eighty"}, "number of answers": {"FORERUN_PARALLEL": "-3"},
        "log": {"RUST_LOG": "loud,,=["}, "form of the log": {"FORERUN_LOG_FORMAT": "xml"},
        "host": {"FORERUN_HOST": "localhost:80:80"}, "tool parser": {"FORERUN_TOOL_PARSER": "gpt"},
    }.items():
        yield Case(AREA, f"serve with a wrong {name} in the environment", ["serve"], env=env)


def odd_files():
    def fifo(name):
        def prepare(_runner, folder):
            os.mkfifo(folder / name)
        return prepare

    def link(_runner, folder):
        (folder / "a").symlink_to("b")
        (folder / "b").symlink_to("a")

    def unix_socket(_runner, folder):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(folder / "x"))
    yield Case(AREA, "a model that is a circle of links", [*SHORT, "--model={dir}/a"], prepare=link)
    yield Case(AREA, "a model that is a socket", [*SHORT, "--model={dir}/x"], prepare=unix_socket)
    yield Case(AREA, "a prompt that is a socket", ["generate", "-n", "4", "-f", "{dir}/x"], prepare=unix_socket)
    yield Case(AREA, "a path of 5,000 letters", [*SHORT, "--model=/" + "a" * 5000])
    yield Case(AREA, "a path with line breaks", [*SHORT, "--model=/a\n\nb"])
    yield Case(AREA, "a path that looks like an option", [*SHORT, "--model=--help"])
    yield Case(AREA, "a path that looks like a URL", [*SHORT, "--offline", "--model=https://example.com/a/b"])
    yield Case(AREA, "a hub id with a wrong tag", [*SHORT, "--offline", "--model=a/b:Q99"])
    yield Case(AREA, "a hub id of dots", [*SHORT, "--offline", "--model=../..:Q4_K_M"])
    for option in ("--json-schema", "--grammar"):
        for path in ("/dev/zero", "/", "/absent", "/proc/self/mem", "/dev/null"):
            yield Case(AREA, f"{option} {path}", [*SHORT, option, path])
    yield Case(AREA, "a trace to a circle of links", [*SHORT, "--trace={dir}/a"], prepare=link)
    yield Case(AREA, "an export to a circle of links", ["export", "--model={exportable}", "--gguf", "{dir}/a"], prepare=link)
    yield Case(AREA, "an export into an absent folder", ["export", "--model={exportable}", "--gguf", "{dir}/x/y.gguf"])
    yield Case(AREA, "a pair at a pipe", ["make-pair", "--out", "{dir}/pipe"], prepare=fifo("pipe"))
    yield Case(AREA, "an importance text of zeros", ["export", "--model={exportable}", "--gguf", "{dir}/m.gguf", "--importance",
                                                     "/dev/zero"])
    yield Case(AREA, "an empty importance text", ["export", "--model={exportable}", "--gguf", "{dir}/m.gguf", "--importance",
                                                  "/dev/null"])
    yield Case(AREA, "quality of an empty text", ["bench", "quality", "--text", "/dev/null"])


def configurations():
    def config(text):
        def prepare(_runner, folder):
            (folder / "c.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
            return ["c.toml"]
        return prepare
    run = [*SHORT, "--config={dir}/c.toml"]
    for name, text in {
        "a wrong type": "temperature = 'hot'", "an unknown option": "warmth = 3", "an unknown table": "[oven]\nwarmth = 3",
        "a date": "seed = 1979-05-27", "a table for an option": "[seed]\nx = 1", "an option twice": "seed = 1\nseed = 2",
        "half a line": "seed =", "binary": bytes(range(256)), "Latin-1": b"model = '\xe9'",
        "JSON": '{"seed": 1}', "a depth of 10,000": "a = " + "[" * 10_000 + "]" * 10_000,
        "a number too large": "seed = " + "9" * 30, "infinity": "temperature = inf",
    }.items():
        yield Case(AREA, f"a configuration with {name}", run, prepare=config(text))
    yield Case(AREA, "an empty configuration file", run, ANSWERS, prepare=config(""))
    yield Case(AREA, "a configuration with a byte-order mark", run, SURVIVES, prepare=config(b"\xef\xbb\xbfseed = 1\n"))
    yield Case(AREA, "a configuration of a million comments", run, ANSWERS, prepare=config("# x\n" * 1_000_000))


SCHEMAS = {
    "that contains itself": {"$ref": "#"}, "of a remote reference": {"$ref": "http://127.0.0.1:1/x"},
    "of a file": {"$ref": "file:///etc/passwd"}, "without values": {"allOf": [{"type": "string"}, {"type": "number"}]},
    "of false": False, "of a huge length": {"type": "string", "minLength": 10**9},
    "of huge bounds": {"type": "integer", "minimum": 10**40, "maximum": 10**41},
    "of an unknown type": {"type": "colour"}, "of a pattern that explodes": {"type": "string", "pattern": "((a{1,999}){1,999}){1,999}"},
    "of a broken pattern": {"type": "string", "pattern": "("}, "of a pattern that looks ahead": {"type": "string", "pattern": "(?=a)b"},
    "of 20,000 values": {"enum": [str(number) for number in range(20_000)]},
    "of 3,000 properties": {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(3000)}},
    "of many items": {"type": "array", "items": {"type": "null"}, "minItems": 10**7},
    "of numbers as properties": {"type": "object", "properties": [1, 2]},
    "of a name with quotes": {"type": "object", "properties": {"\"\\\n</tool_call>": {"const": 1}}, "required": ["\"\\\n</tool_call>"]},
    "of references in a circle": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "of many choices of choices": {"anyOf": [{"anyOf": [{"const": [a, b]} for b in range(60)]} for a in range(60)]},
}


def nested(depth):
    schema = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def bombs():
    def schema_file(schema):
        def prepare(_runner, folder):
            (folder / "schema").write_text(json.dumps(schema))
            return ["schema"]
        return prepare
    for name, schema in SCHEMAS.items():
        yield Case(AREA, f"a schema {name}", [*SHORT, "--json-schema", "{dir}/schema"], SURVIVES, prepare=schema_file(schema))
    for depth in (40, 400):
        yield Case(AREA, f"a schema of depth {depth}", [*SHORT, "--json-schema", json.dumps(nested(depth))], SURVIVES)
    yield Case(AREA, "a schema of depth 50,000 as text", [*SHORT, "--json-schema", "[" * 50_000 + "]" * 50_000])
    for name, regex in {"that explodes": "(((x?){99}){99}){99}", "of huge bounds": "a{1,999999999}", "of nothing": "[^\\s\\S]",
                        "with a group that is open": "(", "that refers back": "(a)\\1", "of the empty text": ""}.items():
        yield Case(AREA, f"a regular expression {name}", [*SHORT, "--regex", regex], SURVIVES)

    def grammar(text):
        def prepare(_runner, folder):
            (folder / "g").write_text(text)
            return ["g"]
        return prepare
    for name, text in {
        "without a start": "a: \"x\"", "that begins with itself": "start: start \"a\" | \"a\"", "of nothing but itself": "start: start",
        "of an absent rule": "start: b", "with an open text": "start: \"a", "of GBNF without a root": "x ::= \"a\"",
        "of GBNF that is open": "root ::= (\"a\"", "of GBNF that repeats itself": "root ::= root root | \"a\"",
        "of 100,000 choices": "start: " + " | ".join(f'"{number}"' for number in range(100_000)),
        "of deep brackets": "start: " + "(" * 5000 + "\"a\"" + ")" * 5000,
        "of the empty text": "start: \"\"", "of a special token": "start: <|endoftext|>", "of an unknown token": "start: <[99999999]>",
        "of an import": "%import /etc/passwd\nstart: \"a\"",
    }.items():
        yield Case(AREA, f"a grammar {name}", [*SHORT, "--grammar={dir}/g"], SURVIVES, prepare=grammar(text))


def commands():
    simulate = ["simulate", "run"]
    for option, values in {"--acceptance": ["nan", "-0.1", "1.1", "0", "1"], "--target-ms": ["0", "-1", "nan", "1e300"],
                           "--draft-ms": ["inf", "1e-300"], "--targets": ["0", "1000000"], "--draft-tokens": ["0", "100000"],
                           "--max-tokens": ["0", "1000000000"], "--calibration": ["/absent", "/dev/null"]}.items():
        for value in values:
            yield Case(AREA, f"simulate {option} {value}", [*simulate, "--method", "dsi", f"{option}={value}"], SURVIVES)
    for option, value in (("--layers", "0"), ("--layers", "1000000"), ("--hidden", "7"), ("--heads", "3"), ("--kv-heads", "99"),
                          ("--vocab-size", "0"), ("--context", "0"), ("--acceptance", "2"), ("--prompts", "0")):
        yield Case(AREA, f"make-pair {option} {value}", ["make-pair", "--out", "{dir}/p", f"{option}={value}"], SURVIVES)
    for argv in (["bench", "run", "--suite", "absent"], ["bench", "run", "--limit", "0"], ["bench", "run", "--method", "x,y"],
                 ["bench", "run", "--suite", "/dev/null"], ["bench", "serve", "--server", "http://127.0.0.1:1"],
                 ["bench", "serve", "--server", "not a url"], ["bench", "serve", "--server", "ftp://127.0.0.1"],
                 ["analyze", "x"],
                 ["simulate", "sweep", "--out", "/"], ["simulate", "paper", "x"], ["serve", "--tool-parser", "x"]):
        yield Case(AREA, " ".join(argv), argv)

    def together(runner, folder):
        argv = runner.command(["export", "--model={exportable}", "--gguf", "{dir}/m.gguf", "--type", "q8_0"], folder)
        started = [subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        errors = [process.communicate(timeout=60)[1] for process in started]
        if any(process.returncode not in (0, 1) or "panicked" in error for process, error in zip(started, errors)):
            return str(errors)
        check = runner.command(["generate", "-n", "2", "-p", "a", "--model={dir}/m.gguf"], folder)
        done = subprocess.run(check, capture_output=True, text=True, timeout=60)
        left = [path.name for path in folder.iterdir() if path.name != "m.gguf"]
        return done.stderr if done.returncode else f"left behind: {left}" if left else None
    yield Case(AREA, "four exports to one file at once", [], run=together)

    def stopped(runner, folder):
        argv = runner.command(["generate", "-n", "300", "--ignore-eos", "-p", "Once"], folder)
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(20)
        process.send_signal(signal.SIGSTOP)
        threading.Event().wait(1)
        process.send_signal(signal.SIGCONT)
        err = process.communicate(timeout=60)[1]
        return None if process.returncode == 0 else err.decode()[-300:]
    yield Case(AREA, "generate that is stopped for a second", [], run=stopped)


def clients():
    def case(name, act, *options):
        def run(runner, folder):
            with server(runner, folder, *options) as port:
                return act(port) or healthy(port, folder)
        return Case(AREA, name, [], run=run)

    def body(name, path, value, statuses=(200, 400), headers=None):
        def act(port):
            status, answer = post(port, path, value, headers)
            return None if status in statuses else f"status {status}: {answer[:300]}"
        return case(name, act)
    chat, hello = "/v1/chat/completions", [{"role": "user", "content": "Hi"}]
    base = {"messages": hello, "max_tokens": 3}
    function = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    yield body("half a surrogate", chat, b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 2}')
    yield body("a field twice", chat, b'{"max_tokens": 2, "max_tokens": 3, "messages": []}', (400,))
    yield body("a body in UTF-16", chat, json.dumps(base).encode("utf-16"), (400,))
    yield body("a compressed body", chat, gzip.compress(json.dumps(base).encode()), (400, 415), {"Content-Encoding": "gzip"})
    yield body("a body of another type", chat, base, (200, 400, 415), {"Content-Type": "text/plain"})
    yield body("numbers with exponents", chat, b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2e0, "seed": 1e400}', (400,))
    for name, fields in {
        "1,000 tools": {"tools": [{**function, "function": {**function["function"], "name": f"f{number}"}} for number in range(1000)]},
        "two tools of one name": {"tools": [function, function], "tool_choice": "required"},
        "a tool that is absent": {"tools": [function], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "a tool without a name": {"tools": [{"type": "function", "function": {}}]},
        "a tool of numbers": {"tools": [1, 2]}, "a tool with a hostile name": {"tools": [{"type": "function", "function": {"name": "a\"}\n"}}]},
        "a tool with a schema of false": {"tools": [{"type": "function", "function": {"name": "f", "parameters": False}}]},
        "a choice without tools": {"tool_choice": "required"},
        "a tool and a format": {"tools": [function], "tool_choice": "required", "response_format": {"type": "json_object"}},
        "two formats": {"grammar": "start: \"a\"", "guided_regex": "a"}, "an unknown format": {"response_format": {"type": "xml"}},
        "variables that replace the messages": {"chat_template_kwargs": {"messages": [], "bos_token": "x"}},
        "variables of a list": {"chat_template_kwargs": [1]}, "an effort of 10,000 letters": {"reasoning_effort": "x" * 10_000},
        "5,000 biases": {"logit_bias": {str(number): 1 for number in range(5000)}},
        "calls that never happened": {"messages": [*hello, {"role": "tool", "tool_call_id": "x", "content": "y"}]},
        "calls with broken arguments": {"messages": [*hello, {"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": "{"}}]}]},
    }.items():
        yield body(f"a chat with {name}", chat, {**base, **fields})
    for name, schema in SCHEMAS.items():
        required = {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required"}
        yield body(f"a tool with a schema {name}", chat, {**base, **required})
    for name, value in {"nothing": {}, "a list": {"input": []}, "a number": {"input": 3}, "an unknown item": {"input": [{"type": "x"}]},
                        "a response before": {"input": "a", "previous_response_id": "x"}}.items():
        yield body(f"a response to {name}", "/v1/responses", value, (400,))
    for name, value in {"nothing": {}, "no limit": {"messages": hello}, "a system of numbers": {"messages": hello, "max_tokens": 2, "system": 3},
                        "a picture": {"max_tokens": 2, "messages": [{"role": "user", "content": [{"type": "image"}]}]},
                        "nobody": {"max_tokens": 2, "messages": [{"role": "nobody", "content": "x"}]}}.items():
        yield body(f"a message with {name}", "/v1/messages", value, (400,))

    def pipelined(port):
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 200
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(request)
            got = b""
            while got.count(b'{"status":"ok"}') < 200:
                more = connection.recv(65536)
                if not more:
                    return f"only {got.count(b'HTTP/1.1 200')} answers"
                got += more
        return None
    yield case("200 requests in a row without waiting", pipelined)

    def expects(port):
        text = json.dumps({**base, "messages": hello}).encode()
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
                               % (chat.encode(), len(text)))
            first = connection.recv(4096)
            connection.sendall(text)
            return None if b"100" in first and b" 200 " in connection.recv(65536) else str(first)
    yield case("a client that asks before it sends", expects)

    def drips(port):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            for byte in b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":
                connection.sendall(bytes([byte]))
                threading.Event().wait(0.02)
            return None if b" 200 " in connection.recv(4096) else "no answer"
    yield case("a request letter by letter", drips)

    def methods(port):
        for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW"):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(f"{method} /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                if not connection.recv(4096).startswith(b"HTTP/1.1 "):
                    return f"no answer to {method}"
        return None
    yield case("every method of HTTP", methods)

    def resets(port):
        import struct
        for _ in range(50):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            text = json.dumps({**base, "stream": True, "max_tokens": 300}).encode()
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (chat.encode(), len(text)) + text)
            connection.close()
        return None
    yield case("50 connections that are reset", resets)


def cases():
    yield from environments()
    yield from odd_files()
    yield from configurations()
    yield from bombs()
    yield from commands()
    yield from clients()
