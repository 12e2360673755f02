#!/usr/bin/env bash
# Installs what forerun is compared with, by package name, into a folder: llama.cpp from the source of its
# Python package, built for this processor, and Hugging Face transformers.
#
# Usage: bench/peers/install.sh FOLDER [llama.cpp] [transformers]      (both, if neither is named)
#
# It needs Python 3.9 or newer with venv, and a C++ compiler. llama.cpp takes 80 MB and some minutes of
# building. PyPI's torch for Linux on x86-64 brings CUDA libraries of several gigabytes along, which are
# not used; with another index that has torch without them, set PIP_EXTRA_INDEX_URL.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '1,9p' >&2; exit 2; }
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
shift
peers="${*:-llama.cpp transformers}"
llama_version="${LLAMA_CPP_PYTHON_VERSION:-0.3.36}"
jobs="${JOBS:-$(nproc)}"

[ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet)

for peer in $peers; do
    case "$peer" in
    llama.cpp)
        source="$folder/llama_cpp_python-$llama_version"
        if [ ! -d "$source" ]; then
            "${pip[@]}" download --no-deps --no-binary llama-cpp-python --dest "$folder" "llama-cpp-python==$llama_version"
            tar -xzf "$source.tar.gz" -C "$folder"
        fi
        "${pip[@]}" install cmake ninja
        PATH="$folder/venv/bin:$PATH" cmake -S "$here" -B "$folder/build" -G Ninja \
            -DLLAMA_CPP_DIR="$source/vendor/llama.cpp" \
            -DPEER_VERSION="(llama-cpp-python $llama_version)" >"$folder/cmake.log"
        PATH="$folder/venv/bin:$PATH" cmake --build "$folder/build" --target llama_peer -j "$jobs"
        ;;
    transformers) "${pip[@]}" install -r "$here/requirements.txt" ;;
    *) echo "no peer is called $peer: llama.cpp, transformers" >&2 && exit 2 ;;
    esac
done
echo "installed: $peers in $folder" >&2
