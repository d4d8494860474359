# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced by the scripts that need an environment of their own: Python environments from pinned files.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/scripts/setup/common.sh"
export PYTHONDONTWRITEBYTECODE=1

# pinned_venv NAME INSTALL REQUIREMENTS...: sets venv to the folder NAME of the repository, an environment
# that INSTALL fills. It is made anew where it was made from other files: what it was made from is noted
# last, so that an interrupted installation is simply repeated.
pinned_venv() {
  venv=$root/$1
  ! cat "${@:3}" | cmp -s - "$venv/requirements.txt" || return 0
  say "making $1"
  rm -rf "$venv"
  python3 -m venv "$venv" || die 2 "python3 -m venv failed; is python3-venv installed?"
  echo '*' >"$venv/.gitignore"
  "$2"
  cat "${@:3}" >"$venv/requirements.txt"
}

pip_install() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }

# run_maker NAME ENVIRONMENT ARGUMENT...: runs scripts/python/NAME.py in .venv-ENVIRONMENT, which
# install_ENVIRONMENT fills from scripts/python/requirements-ENVIRONMENT.txt. The arguments are checked first.
run_maker() {
  local name=$1 environment=$2 argument
  shift 2
  command -v python3 >/dev/null || die 2 "python3 is missing"
  python3 "$root/scripts/python/maker_arguments.py" "$name" "$@"
  for argument in "$@"; do
    [[ $argument != -h && $argument != --help ]] || exit 0
  done
  requirements=$root/scripts/python/requirements-$environment.txt
  pinned_venv ".venv-$environment" "install_$environment" "$requirements"
  # No GPU and no network: only the pinned code and the seeds decide what is made.
  export CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1
  exec "$venv/bin/python" "$root/scripts/python/$name.py" "$@"
}

# torch and transformers. The CPU build is 20 times smaller; PyPI has the same version with CUDA where that
# index is not reachable.
install_golden() {
  local index=https://download.pytorch.org/whl/cpu
  pip_install --retries 1 --index-url "$index" "$(grep '^torch==' "$requirements")" 2>/dev/null ||
    say "$index is not reachable; installing torch from PyPI (3 GB)"
  pip_install -r "$requirements" || die 2 "cannot install $requirements"
}

# tokenizers, and TRL's sources, which are only read, for the chat templates in them.
install_tokenizers() {
  local templates=trl==1.16.0
  pip_install -r "$requirements" || die 2 "cannot install $requirements"
  "$venv/bin/pip" download --quiet --no-deps --dest "$venv/sources" "$templates" ||
    die 2 "cannot download $templates"
}
