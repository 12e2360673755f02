"""Runs hostile cases: what users, broken files, full disks and impatient clients do to `forerun`."""

import dataclasses
import hashlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time

# No case may take longer, in seconds.
LIMIT = 60

# How a run may end. `survives`: it answers or refuses, as the bytes of a damaged file happen to say.
ANSWERS, REFUSES, INTERRUPTED, SURVIVES = "answers", "refuses", "interrupted", "survives"


@dataclasses.dataclass
class Case:
    area: str
    name: str
    argv: list
    expect: str = REFUSES
    # Words that the error must contain, so that it says what is wrong.
    says: list = dataclasses.field(default_factory=list)
    stdin: bytes = b""
    env: dict = dataclasses.field(default_factory=dict)
    # Prepares the folder {dir}, and may return the names of files that must not change.
    prepare: object = None
    # Checks the folder afterwards; returns what is wrong with it, if anything.
    check: object = None
    # A signal, and the seconds after which it is sent, again and again until the run ends.
    signal: object = None
    after: float = 0.3
    # The largest address space in bytes.
    memory: int = 0
    # Runs something else than the binary: a function of the runner and the folder that returns what is wrong.
    run: object = None


@dataclasses.dataclass
class Runner:
    binary: str
    models: dict

    def command(self, argv, folder):
        names = {"dir": folder, **self.models}
        words = []
        for word in argv:
            for name, value in names.items():
                word = word.replace("{" + name + "}", str(value))
            words.append(word)
        return [self.binary, *words]

    def environment(self, case, folder):
        env = {key: value for key, value in os.environ.items() if not key.startswith("FORERUN_")}
        return {**env, "TMPDIR": str(folder), "RUST_BACKTRACE": "0", **case.env}

    def perform(self, case):
        """Returns how a case ended, and what is wrong, if anything."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="hostile-"))
        try:
            kept = (case.prepare(self, folder) if case.prepare else None) or []
            hashes = {name: digest(folder / name) for name in kept}
            if case.run:
                wrong = case.run(self, folder)
                return ANSWERS, wrong
            outcome, wrong = self.start(case, folder)
            if not wrong:
                changed = [name for name in kept if digest(folder / name) != hashes[name]]
                left = [path.name for path in folder.rglob("*") if ".tmp" in path.name or path.suffix == ".part"]
                wrong = f"changed: {changed}" if changed else f"left behind: {left}" if left else None
            if not wrong and case.check:
                wrong = case.check(self, folder)
            return outcome, wrong
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, case, folder):
        def limit():
            # A shell starts background jobs with SIGINT ignored.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if case.memory:
                resource.setrlimit(resource.RLIMIT_AS, (case.memory, case.memory))

        began = time.monotonic()
        process = subprocess.Popen(
            self.command(case.argv, folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=self.environment(case, folder), cwd=folder, preexec_fn=limit)
        pause = case.after if case.signal else LIMIT
        stdin = case.stdin
        while True:
            try:
                out, err = process.communicate(stdin, timeout=pause)
                break
            except subprocess.TimeoutExpired:
                stdin = None
                if time.monotonic() - began > LIMIT:
                    process.kill()
                    process.communicate()
                    return "hangs", f"no end after {LIMIT} s"
                if case.signal:
                    process.send_signal(case.signal)
        return judge(case, process.returncode, out, err.decode(errors="replace"))


def digest(path):
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return [str(path.stat().st_mode), str(path.stat().st_rdev)] if path.exists() else "absent"


def judge(case, code, out, err):
    sent = {-case.signal, 128 + case.signal} if case.signal else set()
    if "panicked" in err or "RUST_BACKTRACE" in err:
        return "panics", err[-400:]
    if code in sent:
        outcome = INTERRUPTED
    elif code in (0, 3):
        # 3: a structured answer was cut.
        outcome = ANSWERS
    elif code in (1, 2):
        outcome = REFUSES
    else:
        return "aborts", f"exit code {code}: {err[-400:]}"
    allowed = {SURVIVES: {ANSWERS, REFUSES}, INTERRUPTED: {INTERRUPTED, ANSWERS}}.get(case.expect, {case.expect})
    if outcome not in allowed:
        return outcome, f"{outcome} instead of {case.expect}: {err[-400:]} {out[-200:]!r}"
    if outcome == REFUSES:
        if "error" not in err and "Usage:" not in err:
            return outcome, f"no error message: {err[-400:]}"
        missing = [word for word in case.says if word.lower() not in err.lower()]
        if missing:
            return outcome, f"the error does not say {missing}: {err[-400:]}"
        if len(err.splitlines()) > 40:
            return outcome, f"an error of {len(err.splitlines())} lines"
        if err.count("os error") > 1:
            return outcome, f"the system's error twice: {err[-400:]}"
    return outcome, None
