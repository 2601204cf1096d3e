#!/usr/bin/env bash
# Builds all that the check of a GPU needs and collects it in a folder that git ignores, to be carried to the card's
# machine: usage: tools/gpu/pack.sh [FOLDER], by default target/gpu-check.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-target/gpu-check}
target=${CARGO_TARGET_DIR:-target}

# The machine of the card may be as old as this.
newest_glibc=2.35
most_bytes=45000000

say() { printf '== %s\n' "$*"; }

say "Programs"
cargo build --locked --release --features cuda --package setrank --package setrank-gpu-check
# In this build a kernel's wait ends, and says where it was: only sm_90's kernels have such waits.
SETRANK_CUDA_ARCHS=90a NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} -DSETRANK_BOUNDED_WAITS" \
    cargo build --locked --release --features cuda --package setrank-gpu-check --target-dir "$target/gpu-bounded"
say "Tests"
tests=$(cargo test --locked --features cuda --test kernels --no-run --message-format json |
    python3 -c '
import json, sys
built = [json.loads(line) for line in sys.stdin]
print(next(of["executable"] for of in built if of.get("executable") and of["target"]["name"] == "kernels"))')

say "Folder $folder"
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
cp "$target/release/setrank" "$target/release/setrank-gpu-check" "$programs"
cp "$target/gpu-bounded/release/setrank-gpu-check" "$programs/setrank-gpu-check-bounded"
cp "$tests" "$programs/kernels"
strip "$programs"/*
for program in "$programs"/*; do
    needed=$(objdump -T "$program" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
    if [ "$(printf '%s\n' "$needed" "$newest_glibc" | sort -V | tail -n 1)" != "$newest_glibc" ]; then
        echo "error: ${program##*/} needs glibc $needed, but a card's machine may have no newer than $newest_glibc: build on an older system" >&2
        exit 1
    fi
done
rm -rf "$folder"
mkdir -p "$folder/stage"
# Most of a program is kernels for several cards, which compress well.
tar -czf "$folder/programs.tar.gz" -C "$programs" .
cp tools/gpu/check.sh "$folder"
cp tools/gpu/stage/*.py "$folder/stage"
rm -f "$folder"/stage/test_*.py
cp tests/kernels/counters.txt "$folder"
mkdir "$folder/peers"
cp tools/peers/{bench_torch,peaks_torch,padded_torch,varlen_torch,setrank_torch,config}.py "$folder/peers"
git describe --always --dirty --abbrev=12 > "$folder/VERSION"

bytes=$(du -sb "$folder" | cut -f 1)
if [ "$bytes" -gt "$most_bytes" ]; then
    echo "error: $folder has $bytes bytes, more than $most_bytes: something in it has grown" >&2
    exit 1
fi
say "$folder: $((bytes / 1000000)) MB. On the card's machine: ./check.sh --stage triage --out DIR"
