#!/usr/bin/env bash
# The warnings of the C compiler about store_client/hot*.c, as errors. Does nothing where there is none: the build does without too.
# usage: scripts/lint_c.sh   (CC=... picks the compiler, PYTHON=... whose headers are used)
set -euo pipefail
cd "$(dirname "$0")/.."

compiler=${CC:-gcc}
command -v "$compiler" >/dev/null || exit 0
headers=$("${PYTHON:-.venv/bin/python}" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -e "$headers/Python.h" ] || exit 0
for source in store_client/hot*.c; do
    # As it is built: some warnings come with the optimiser only.
    "$compiler" -c -O3 -pthread -fPIC -Wall -Wextra -Wno-unused-parameter -Werror -I"$headers" -o /dev/null "$source"
done
