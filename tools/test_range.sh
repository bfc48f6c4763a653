#!/usr/bin/env bash
# The Hugging Face member under the oldest transformers that it promises to work with: that one goes into .venv-old, all
# else comes from .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
oldest=4.57.6
if [ ! -f .venv-old/.ready ]; then
    rm -rf .venv-old
    .venv/bin/python -m venv .venv-old
    .venv-old/bin/python -m pip install --quiet --disable-pip-version-check "transformers==$oldest"
    packages='import sysconfig; print(sysconfig.get_path("purelib"))'
    .venv/bin/python -c "$packages" > "$(.venv-old/bin/python -c "$packages")/rest.pth"
    touch .venv-old/.ready
fi
tests=(tests/test_hf.py tests/test_hf_tokenizer.py tests/contract)
PYTHONPATH=src .venv-old/bin/python -m pytest -q -m "not models and not gpu" "${tests[@]}" "$@"
