# shellcheck shell=bash
# Sourced by scripts/golden and scripts/train_tiny, whose `fail` it calls: run_with_transformers FILE ARGUMENT...
# runs scripts/python/FILE with the pinned torch and transformers of requirements-golden.txt. The first use
# installs them into .venv-golden.

run_with_transformers() {
  local root venv requirements cpu_index=https://download.pytorch.org/whl/cpu
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  venv=$root/.venv-golden
  requirements=$root/scripts/python/requirements-golden.txt
  command -v python3 >/dev/null || fail "python3 is missing"
  if ! cmp -s "$requirements" "$venv/requirements.txt"; then
    echo "${0##*/}: making $venv" >&2
    rm -rf "$venv"
    python3 -m venv "$venv" || fail "python3 -m venv failed; is python3-venv installed?"
    echo '*' >"$venv/.gitignore"
    # The CPU build is 20 times smaller; PyPI has the same version with CUDA where that index is not
    # reachable.
    "$venv/bin/pip" install --quiet --retries 1 --index-url "$cpu_index" \
      "$(grep '^torch==' "$requirements")" 2>/dev/null ||
      echo "${0##*/}: $cpu_index is not reachable; installing torch from PyPI (3 GB)" >&2
    "$venv/bin/pip" install --quiet -r "$requirements" || fail "cannot install $requirements"
    cp "$requirements" "$venv/requirements.txt"
  fi
  # No GPU and no network: only the pinned code and the seeds decide what is made.
  export CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
  exec "$venv/bin/python" "$root/scripts/python/$1" "${@:2}"
}
