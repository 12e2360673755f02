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


def finish(process, stdin=None, codes=(0, 1, 2), says=()):
    """Waits for the end; returns what is wrong with it."""
    try:
        out, err = process.communicate(stdin, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no end after {LIMIT} s"
    return judge(process.returncode, (err or b"").decode(errors="replace"), codes, says, out)


def judge(code, err, codes=(0, 1, 2), says=(), out=b""):
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
        ("HOME is a file", ["owner/name"], {"HOME": "/etc/passwd"}), ("the hub's cache is a device", [], {"HF_HUB_CACHE": "/dev/null"}),
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
        ("FORERUN_PORT", "eight"), ("FORERUN_PORT", ""), ("FORERUN_PARALLEL", "-1"), ("FORERUN_QUEUE", "1e3"),
        ("FORERUN_API_KEY", ""), ("FORERUN_API_KEY", "a\nb"), ("FORERUN_CORS_ORIGIN", "a\r\nX-Evil: 1"), ("FORERUN_LOG_FORMAT", "xml"),
        ("FORERUN_REQUEST_SECONDS", "nan"), ("FORERUN_REQUEST_SECONDS", "1e300"), ("FORERUN_DRAIN_SECONDS", "-1"),
        ("FORERUN_MAX_BODY_BYTES", "16E"), ("FORERUN_HOST", "localhost"), ("FORERUN_CHAT_TEMPLATE", "{% if"),
        ("FORERUN_CONFIG", "/absent.toml"), ("FORERUN_CONFIG", "/etc"), ("FORERUN_CONFIG", "/dev/zero"), ("RUST_LOG", "a=b=c,[["),
    ):
        says = {"FORERUN_CONFIG": [value], "RUST_LOG": ["log"]}.get(variable, [variable.removeprefix("FORERUN_").lower().replace("_", "-")])
        says = {"/dev/zero": [], "{% if": ["template"]}.get(value, says)
        yield running(f"{variable}={value!r}", functools.partial(refuses_to_serve, env={variable: value}, says=says))
    for variable in ("FORERUN_CONFIG", "FORERUN_API_KEY", "RUST_LOG", "FORERUN_HOST"):
        yield running(f"{variable} in Latin-1", functools.partial(refuses_to_serve, env={variable: os.fsdecode(b"caf\xe9")}))
    yield running("an environment of nothing", lambda runner, folder: judge_run(subprocess.run(
        runner.command(GENERATE, folder), env={}, capture_output=True, timeout=LIMIT), (0,)))
    for name, which, soft, codes in (
        ("5 open files", resource.RLIMIT_NOFILE, 5, (0, 1)), ("8 open files", resource.RLIMIT_NOFILE, 8, (0, 1)),
        ("a stack of 128 kB", resource.RLIMIT_STACK, 128 << 10, (0, 1)), ("a stack without limit", resource.RLIMIT_STACK, -1, (0,)),
        ("locked memory of nothing", resource.RLIMIT_MEMLOCK, 0, (0,)), ("no priorities", resource.RLIMIT_NICE, 0, (0,)),
    ):
        yield running(f"limit: {name}", lambda runner, folder, which=which, soft=soft, codes=codes: finish(
            start(runner, folder, [*GENERATE, "--model={target}"], before=limited(which, soft)), codes=codes))
        yield running(f"limit of pearl: {name}", lambda runner, folder, which=which, soft=soft, codes=codes: finish(
            start(runner, folder, [*GENERATE, "--method", "pearl"], before=limited(which, soft)), codes=codes))
    for name, argv in {"export": ["export", "--model={exportable}", "--gguf", "{dir}/model.gguf"],
                       "a trace": ["generate", "-p", "Once", "--ignore-eos", "--trace", "{dir}/trace.json"],
                       "a comparison": ["bench", "run", "--out", "{dir}/out", "--limit", "1", "-n", "4", "--repeats", "1"]}.items():
        yield running(f"files of 1000 bytes at most: {name}", lambda runner, folder, argv=argv: finish(
            start(runner, folder, argv, before=limited(resource.RLIMIT_FSIZE, 1000)), codes=(1,), says=["large"]) or tidy(runner, folder))
    for count in (0, 1, 2):
        def few(runner, folder, count=count):
            os.chmod(folder, 0o777)

            def nobody():
                os.setgroups([]), os.setgid(NOBODY), os.setuid(NOBODY)
                resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
            return finish(start(runner, folder, [*GENERATE, "--method", "pearl"], before=nobody), codes=(0, 1), says=["unavailable"])
        yield running(f"limit: {count} processes of a user", few)
    yield running("a core that is not allowed", lambda runner, folder: finish(
        start(runner, folder, [*GENERATE, "--placement", "target=cpu:0,drafter=cpu:0,shared"], before=lambda: os.sched_setaffinity(0, {1})),
        codes=(0, 1), says=["core"]))
    yield running("one core for pearl", lambda runner, folder: finish(
        start(runner, folder, [*GENERATE, "--method", "pearl"], before=lambda: os.sched_setaffinity(0, {1})), codes=(0, 1), says=["core"]))

    def gone(argv, codes):
        def run(runner, folder):
            (folder / "gone").mkdir()
            return finish(start(runner, folder, argv, before=lambda: os.rmdir(folder / "gone"), cwd=folder / "gone"), codes=codes)
        return run
    yield running("a current folder that is gone", gone(GENERATE, (0,)))
    yield running("a current folder that is gone, for a comparison", gone(["bench", "run", "--limit", "1", "-n", "4"], (1,)))
    yield running("a current folder that is gone, for a trace", gone([*GENERATE, "--trace", "a.svg"], (1,)))
    for name, commands in {"/proc": "mount -t tmpfs none /proc", "/sys": "mount -t tmpfs none /sys",
                           "/dev": "mount -t tmpfs none /dev", "/proc and /sys": "mount -t tmpfs none /proc; mount -t tmpfs none /sys"}.items():
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
            return finish(process, codes=(0, 1, -number, 128 + number)) or (tidy(runner, folder) if number == signal.SIGHUP else None)
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


def cases():
    yield from environments()
