#!/usr/bin/env bash
# Real vLLM on a GPU: one process saves, another loads. See README.md beside this file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
python=${PYTHON:-python3}
export PYTHONPATH="$here/../../src:$here${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONHASHSEED=0
export VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_HOST_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
model=${MODEL:-/dev/shm/moonpool-gpu-test/model}
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

[ -e "$model/model.safetensors" ] || "$python" "$here/make_model.py" "$model"
"$python" -m moonpool.master --port 50051 2>"$work/master.log" &
"$python" -m moonpool.store_client.node --size "${POOL:-12GB}" --run-dir "$work/run" --ready-file "$work/node" \
    2>"$work/node.log" &
for _ in $(seq 600); do [ -s "$work/node" ] && break; sleep 0.1; done
mkdir "$work/out"
"$python" "$here/copy_rate.py" 127.0.0.1:50051
for mode in reference save load control; do
    "$python" "$here/engine.py" "$mode" "$model" 127.0.0.1:50051 "$work/out/$mode.json"
done
"$python" "$here/compare.py" "$work/out"
