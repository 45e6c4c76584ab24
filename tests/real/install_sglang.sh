#!/bin/bash
# install_sglang.sh DIRECTORY: a real SGLang for CPUs in DIRECTORY/venv and a tiny model in DIRECTORY/model.
# x86-64 and Python 3.11; 3 GB and some minutes. Another version needs its own list of requirements beside this file.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
directory=${1:?usage: install_sglang.sh DIRECTORY}
: "${PYTHON:=python3}" "${SGLANG_VERSION:=0.5.9}"
# A build for CPUs is enough. Where the package index offers only those for CUDA, let
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu and TORCH_VERSION=2.13.0+cpu choose it.
: "${TORCH_VERSION:=2.13.0}" "${TORCHAO_VERSION:=0.9.0}"

"$PYTHON" -m venv "$directory/venv"
python="$directory/venv/bin/python"
install() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }

install "torch==$TORCH_VERSION"
install --requirement "$here/requirements-$SGLANG_VERSION.txt"
# Without their dependencies, which are kernels for CUDA; `stand_ins` takes the place of those that are imported.
install --no-deps "sglang==$SGLANG_VERSION" "torchao==$TORCHAO_VERSION"
"$python" "$here/tiny_model.py" "$directory/model"
