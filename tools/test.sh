#!/usr/bin/env bash
# Passes all tests: toolchain, format, lints, documentation, scripts, tests. Stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."
# All is built once here: what helps with the next build, or in a debugger, makes this one longer.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_DEBUG=false

say() { printf '\n== %s\n' "$*"; }

say "Toolchain"
tools/toolchain.sh

# They mostly wait: for programs that pretend to hang.
stages=$(mktemp)
python3 -m unittest discover -s tools/gpu/stage > "$stages" 2>&1 &
of_stages=$!
trap 'kill "$of_stages" 2> /dev/null || true; rm -f "$stages"' EXIT

say "Format"
cargo fmt --all --check

# All in one profile, so that build scripts and what they need are built once.
say "Lints"
cargo clippy --locked --profile test --workspace --all-targets --features cuda -- -D warnings
# Without the feature: what it adds must not be missed. Of the workspace, so that libraries are those of the line before.
cargo clippy --locked --profile test --workspace --all-targets -- -D warnings

# With examples, so that libraries are those that tests have: the emulator takes minutes to build.
say "Documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --profile test --workspace --lib --bin setrank-gpu-check --examples \
    --no-deps --document-private-items --features cuda

say "Tools"
python3 tools/quality/test_quality.py
python3 tools/page/test_page.py
wait "$of_stages" || { cat "$stages"; exit 1; }
tail -n 3 "$stages"
if command -v shellcheck > /dev/null; then
    shellcheck tools/*.sh tools/gpu/*.sh .ci/run
fi

say "Tests"
# All targets but most benches, which lints have checked: the emulator's is as long to build as the kernels' tests, and each of
# the others compiles what it measures anew. Those of kernels need a driver.
cargo test --locked --workspace --lib --bins --tests --examples --bench letor --features cuda
cargo test --locked --workspace --doc --features cuda
# Every bench of a kernel once, on the mock driver, whose folder an example that was built above names.
example=$(cargo build --locked --profile test --workspace --features cuda --example driver --message-format json \
    | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
LD_LIBRARY_PATH=$("$example") SETRANK_MOCK_DEVICE=cc=9.0,multiprocessors=1,workers=2 SETRANK_BENCH_DEVICE=0 \
    SETRANK_BENCH_DOCUMENTS=64 cargo test --locked --workspace --features cuda --bench kernels
# A build without the feature says so; nothing that computes differs.
without_gpus() { cargo run --locked --profile test --config 'profile.test.package.setrank.opt-level=0' -- "$@"; }
said=$(without_gpus info --devices)
grep "built without GPU support" <<< "$said" || { printf 'info --devices says:\n%s\n' "$said"; exit 1; }
if without_gpus info --devices --check; then
    echo "info --devices --check passes without GPU support" >&2
    exit 1
fi
