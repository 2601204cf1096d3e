#!/usr/bin/env bash
# Checks the GPU at hand. Runs in the folder that tools/gpu/pack.sh fills: needs a driver and Python, nothing else.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2> /dev/null; then
    echo "error: check.sh needs python3, version 3.8 or newer, on PATH" >&2
    exit 2
fi
if [ ! -x "$here/setrank-gpu-check" ] && [ -f "$here/programs.tar.gz" ]; then
    tar -xzf "$here/programs.tar.gz" -C "$here" || { echo "error: cannot unpack $here/programs.tar.gz there" >&2; exit 2; }
fi
if [ ! -x "$here/setrank-gpu-check" ]; then
    echo "error: $here has no program setrank-gpu-check: run tools/gpu/pack.sh, and the check.sh in the folder that it names" >&2
    exit 2
fi
exec python3 "$here/stage/main.py" "$@"
