#!/bin/bash
# launch_sglang.sh DIRECTORY PORT [FLAG...]: becomes the real server, with two ranks on this machine's CPUs.
# DIRECTORY is what install_sglang.sh made. The output goes where this script's goes; ready within a minute or two.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
directory=$(cd "${1:?usage: launch_sglang.sh DIRECTORY PORT [FLAG...]}" && pwd)
port=${2:?usage: launch_sglang.sh DIRECTORY PORT [FLAG...]}
shift 2

mkdir -p "$directory/home"
cd "$directory"
export HOME="$directory/home" PYTHONPATH="$here/stand_ins" PYTHONUNBUFFERED=1
export SGLANG_USE_CPU_ENGINE=1 CUDA_VISIBLE_DEVICES= TORCHDYNAMO_DISABLE=1
export OMP_NUM_THREADS=1 SGLANG_CPU_OMP_THREADS_BIND='0|1'
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
exec "$directory/venv/bin/python" -m sglang.launch_server \
    --model-path "$directory/model" --host 127.0.0.1 --port "$port" --tp-size 2 --enable-metrics \
    --device cpu --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph \
    --mem-fraction-static 0.3 --max-total-tokens 20000 "$@"
