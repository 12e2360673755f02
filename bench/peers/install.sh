#!/usr/bin/env bash
# Installs the engines that forerun is compared with into a folder, by package name: llama.cpp,
# built for this processor from the source of its Python package, and Hugging Face transformers.
#
# Usage: bench/peers/install.sh FOLDER [llama.cpp] [llama-server] [transformers]      (default:
# llama.cpp transformers)
#
# Requires Python 3.9 or newer with venv, and a C++ compiler. llama.cpp needs 80 MB of downloads and
# some minutes to build. PyPI's torch for Linux on x86-64 also installs several gigabytes of CUDA
# libraries, which are not used. To use another index that has torch without them, set
# PIP_EXTRA_INDEX_URL.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,9p' >&2; exit 2; }
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
shift
peers="${*:-llama.cpp transformers}"
llama_version="${LLAMA_CPP_PYTHON_VERSION:-0.3.36}"
jobs="${JOBS:-$(nproc)}"

[ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet)

declare -A targets=([llama.cpp]="llama_peer llama_logits llama_passes" [llama-server]=llama-server)
for peer in $peers; do
    case "$peer" in
    llama.cpp | llama-server)
        source="$folder/llama_cpp_python-$llama_version"
        if [ ! -d "$source" ]; then
            "${pip[@]}" download --no-deps --no-binary llama-cpp-python --dest "$folder" "llama-cpp-python==$llama_version"
            tar -xzf "$source.tar.gz" -C "$folder"
        fi
        "${pip[@]}" install cmake ninja
        PATH="$folder/venv/bin:$PATH" cmake -S "$here" -B "$folder/build" -G Ninja \
            -DLLAMA_CPP_DIR="$source/vendor/llama.cpp" \
            -DPEER_VERSION="(llama-cpp-python $llama_version)" >"$folder/cmake.log"
        PATH="$folder/venv/bin:$PATH" cmake --build "$folder/build" --target ${targets[$peer]} -j "$jobs"
        ;;
    transformers) "${pip[@]}" install -r "$here/requirements.txt" ;;
    *) echo "unknown engine $peer: use llama.cpp, llama-server or transformers" >&2 && exit 2 ;;
    esac
done
echo "installed $peers in $folder" >&2
