"""Runs the hostile cases and prints a table of their outcomes.

Usage: run.py --binary target/release/forerun --data FOLDER [--area NAME] [--jobs N] [--out FILE.md]

`--data` is the folder of FORERUN_DATA. The binary needs the feature `laboratory`. A case fails if the program panics or
aborts, hangs for 60 seconds, damages a file, leaves temporary files, or does not say what is wrong.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import commandline
import files
import invented
import misuse
import server
from harness import Runner


def models(binary, data, folder):
    """Makes the models of the cases, which only copies are damaged of."""
    hub, llama2c, gguf = data / "models/tinystories656k", data / "models/stories260K", folder / "gguf"
    gguf.mkdir()
    target = pathlib.Path(__file__).parents[2] / "models/target"
    subprocess.run([binary, "export", "--model", target, "--gguf", gguf / "model.gguf", "--type", "q4_k_m"], check=True,
                   capture_output=True)
    return {"hub": hub, "target": hub, "drafter": hub, "llama2c": llama2c, "gguf": gguf, "exportable": target}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("FORERUN_DATA"), required="FORERUN_DATA" not in os.environ)
    parser.add_argument("--area")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    binary = str(pathlib.Path(options.binary).resolve())
    everything = [case for module in (commandline, files, server, misuse, invented) for case in module.cases()]
    chosen = [case for case in everything if not options.area or options.area in case.area]
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(binary, models(binary, options.data.resolve(), pathlib.Path(folder)))
        table, failures, slowest = collections.defaultdict(collections.Counter), [], (0, "")

        def perform(case):
            began = time.monotonic()
            try:
                outcome, wrong = runner.perform(case)
            except Exception as error:
                outcome, wrong = "error", repr(error)
            return case, outcome, wrong, time.monotonic() - began
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for case, outcome, wrong, seconds in pool.map(perform, chosen):
                table[case.area]["FAILED" if wrong else outcome] += 1
                slowest = max(slowest, (seconds, f"{case.area}: {case.name}"))
                if wrong:
                    failures.append(f"{case.area}: {case.name} ({' '.join(case.argv)})\n    {wrong}")
                    print(failures[-1], file=sys.stderr, flush=True)
    lines = ["| area | cases | answers | refuses | interrupted | failed |", "|---|---:|---:|---:|---:|---:|"]
    columns = ("answers", "refuses", "interrupted", "FAILED")
    for area, counts in table.items():
        lines.append(f"| {area} | {sum(counts.values())} | " + " | ".join(str(counts[column]) for column in columns) + " |")
    total = sum(table.values(), collections.Counter())
    lines.append(f"| all | {sum(total.values())} | " + " | ".join(str(total[column]) for column in columns) + " |")
    text = "\n".join(lines)
    print(text, f"\nslowest: {slowest[1]}, {slowest[0]:.1f} s")
    if options.out:
        options.out.write_text(text + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
