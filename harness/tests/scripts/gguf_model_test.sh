#!/usr/bin/env bash
# gguf_model_test.sh ROOT: runs gguf_model_test.py in the environment of scripts/model. Exits with 77 if there is none.
set -uo pipefail
source "$1/scripts/setup/model.sh"
if ! command -v python3 >/dev/null || ! make_model_venv; then
  echo "skipped: no environment for scripts/model: ${why_not:-python3 is missing}"
  exit 77
fi
exec "$venv/bin/python" "$1/harness/tests/scripts/gguf_model_test.py"
