#!/usr/bin/env bash
# Checks the GPU at hand. Runs in the folder that tools/gpu/pack.sh fills: needs a driver and Python, nothing else.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2> /dev/null; then
    echo "error: check.sh needs Python 3.8 or newer, which $python is not: set PYTHON to its path" >&2
    exit 2
fi
# Whatever the locale, names and tables can be printed.
export PYTHONUTF8=1 PYTHONIOENCODING=utf-8
exec "$python" -B "$here/stage/main.py" "$@"
