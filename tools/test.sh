#!/usr/bin/env bash
# Passes all tests: toolchain, format, lints, documentation, scripts, tests. Stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

say "Toolchain"
tools/toolchain.sh

say "Format"
cargo fmt --all --check

# All in one profile, so that build scripts and what they need are built once.
say "Lints"
cargo clippy --locked --profile test --workspace --all-targets --features cuda -- -D warnings
# Without the feature: what it adds must not be missed.
cargo clippy --locked --profile test --all-targets -- -D warnings

say "Documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --profile test --workspace --no-deps --document-private-items --features cuda

say "Tools"
python3 tools/quality/test_quality.py
python3 -m unittest discover -s tools/gpu/stage
if command -v shellcheck > /dev/null; then
    shellcheck tools/*.sh tools/gpu/*.sh .ci/run
fi

say "Tests"
cargo test --locked --workspace --all-targets --features cuda
cargo test --locked --workspace --doc --features cuda
# What differs in a build without the feature: nothing that computes.
CARGO_PROFILE_TEST_OPT_LEVEL=0 cargo test --locked --test cli devices
