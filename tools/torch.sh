#!/bin/sh
# Put torch into the virtual environment VENV, for optcc.pytorch and its tests, unless one is there.
# pip takes it from where it is configured to; TORCH_INDEX names another index, such as the one of CPU builds,
# https://download.pytorch.org/whl/cpu, which are ten times smaller.
set -eu
venv=$1
wanted=${TORCH_VERSION:-2.13.0}

if "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  exit 0
fi
"$venv/bin/pip" install --disable-pip-version-check -q ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$wanted"
"$venv/bin/python" -c 'import torch.distributed as d; assert d.is_gloo_available(), "this torch has no Gloo"'
