# What CI runs, and what takes longer. `just --list` shows all.

# Everything that CI checks
check: fmt clippy doc deny test

fmt:
    cargo fmt --all -- --check

clippy:
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked

deny:
    cargo deny --all-features check licenses bans sources

# All tests; the lossless matrix on a sample of prompts
test:
    cargo nextest run --workspace --all-features --locked
    cargo test --workspace --all-features --doc --locked

# The whole lossless matrix: 120 prompts, all pairs
lossless prompts="120" seed="0":
    FORERUN_LOSSLESS_PROMPTS={{prompts}} FORERUN_LOSSLESS_SEED={{seed}} \
        cargo nextest run --release -p forerun --test lossless_matrix --success-output immediate

# Row invariance on many more random scripts
rows cases="2000":
    FORERUN_CASES={{cases}} cargo nextest run --release -p forerun-model --test row_invariance

# Mutational fuzz of the checkpoint loaders
fuzz cases="1000000":
    FORERUN_FUZZ_CASES={{cases}} \
        cargo nextest run --release -p forerun-model --test fuzz_loaders --success-output immediate
