#!/usr/bin/env bash
# What needs a GPU, on a machine that has one: the machine's own torch, or else one from pip, and the tests marked gpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -d .venv-gpu ] || python3 -m venv --system-site-packages .venv-gpu
.venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check -e '.[hf,test]' tiktoken
.venv-gpu/bin/python -c 'import torch; assert torch.cuda.is_available(), "torch sees no GPU on this machine"'
.venv-gpu/bin/python -m pytest -m gpu "$@"
