#!/usr/bin/env bash
# Passes all tests: format, lints, documentation, scripts, tests. Stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

say "Format"
cargo fmt --check

say "Lints"
cargo clippy --locked --all-targets -- -D warnings

say "Documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items

say "Tools"
python3 tools/quality/test_quality.py

say "Tests"
cargo test --locked --all-targets
cargo test --locked --doc
