#!/usr/bin/env bash
# Runs tests of the loops in C with gcc's address and undefined-behaviour sanitizers, in a copy of the tree: the build that
# is installed stays as it is. Needs gcc with its libasan and libubsan.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
TESTS="tests/client/test_native.py tests/client/test_checksums.py tests/client/test_slots.py tests/client/test_ahead.py
tests/client/test_few_gets.py tests/node/test_sweeps.py tests/node/test_native_lanes.py tests/node/test_core_machine.py
tests/transports tests/master"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
python=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON")
git ls-files -z | xargs -0 cp -P --parents -t "$copy"
cd "$copy"
gcc -shared -fPIC -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -pthread \
    -I"$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')" -o store_client/_hot.abi3.so store_client/hot*.c
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
    PYTHONPATH="$copy/src" "$python" -m pytest -q -n 2 -p no:cacheprovider ${TESTS}
