#!/usr/bin/env bash
# Builds the Python package as a wheel, installs it in a fresh virtual environment under target/,
# and runs its tests, its type checks and the notebook. The profile of the build is the first
# argument: dev (default) or release. With --sample after it, the adapter for lm-eval is left out:
# the harness needs gigabytes of packages.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${1:-dev}
sample=${2:-}
venv=target/python-tests
python=${PYTHON:-python3}
wheels=$PWD/target/wheels-tests

rm -rf "$venv" "$wheels"
"$python" -m venv "$venv"
"$venv/bin/pip" install --quiet "maturin>=1.16,<2" mypy numpy pytest ruff
"$venv/bin/maturin" build --manifest-path python/Cargo.toml --profile "$profile" --locked --out "$wheels"
du -h "$wheels"/*.whl
"$venv/bin/pip" install --quiet "$wheels"/*.whl
"$venv/bin/pip" install --quiet nbconvert ipykernel ||
    echo "nbconvert cannot be installed: the notebook will be skipped" >&2
if [ "$sample" != --sample ]; then
    # The harness is large, and its tests report that they are skipped without it.
    "$venv/bin/pip" install --quiet "lm-eval>=0.4.10" ||
        echo "lm-eval cannot be installed: its tests will be skipped" >&2
fi

# Outside of python/, so that the installed package is the one that is tested.
"$venv/bin/python" -m pytest --config-file python/pyproject.toml --rootdir python -q python/tests
"$venv/bin/ruff" check --config python/pyproject.toml python examples/story.ipynb
"$venv/bin/ruff" format --config python/pyproject.toml --check python examples/story.ipynb
"$venv/bin/mypy" --config-file python/pyproject.toml python/package/forerun python/tests
"$venv/bin/python" -m mypy.stubtest --mypy-config-file python/pyproject.toml forerun._forerun
if "$venv/bin/python" -c 'import ipykernel, nbconvert' 2>/dev/null; then
    "$venv/bin/python" -m nbconvert --to html --execute examples/story.ipynb --output-dir target/notebook
fi
