# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: the Python environments of the repository, made from pinned requirement files.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/scripts/setup/common.sh"
export PYTHONDONTWRITEBYTECODE=1

pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

# install_requirements NAME: installs scripts/setup/requirements-NAME.txt into .venv unless it is there already.
# The copy in .venv is written last, so that an interrupted installation is simply repeated.
install_requirements() {
  local requirements=$root/scripts/setup/requirements-$1.txt
  venv=$root/.venv
  ! cmp -s "$requirements" "$venv/requirements-$1.txt" || return 0
  [[ $install == yes ]] || die 2 "--no-install was given; missing: $(tr '\n' ' ' <"$requirements")"
  say "installing ${requirements#"$root/"} into .venv"
  [[ -x $venv/bin/pip ]] || python3 -m venv "$venv" >&2 ||
    die 2 "python3 -m venv $venv failed; is python3-venv installed?"
  pip_install -r "$requirements" >&2 || die 2 "cannot install from PyPI; missing:" "$(sed 's/^/  /' "$requirements")"
  cp "$requirements" "$venv/requirements-$1.txt"
}

# venv_is_made FOLDER FILE...: sets venv to the environment, below that folder of the repository, of these files and
# this python3. Others have environments of their own, so none is replaced while a script runs in it. Whether it is
# made.
venv_is_made() {
  local key
  key=$({ readlink -f "$(command -v python3)" && python3 --version && cat "${@:2}"; } | sha256sum)
  venv=$root/$1/${key:0:12}
  [[ -e $venv/made ]]
}

# pinned_venv FOLDER FILL FILE...: makes that environment, which the function FILL fills, unless it is made already.
# On failure sets why_not, in words. That it is made is noted last, so that an interrupted installation is simply
# repeated. Under a lock: of several scripts that start at once, one installs and the others wait.
pinned_venv() {
  local folder=$1 fill=$2
  shift 2
  {
    flock 9
    ! venv_is_made "$folder" "$@" || return 0
    say "making ${venv#"$root/"}"
    rm -rf "$venv"  # what is left of an installation that was interrupted
    why_not="python3 -m venv failed; is python3-venv installed, and can $venv be written?"
    python3 -m venv "$venv" >/dev/null 2>&1 || return
    echo '*' >"$venv/.gitignore"
    "$fill" && touch "$venv/made"
  } 9<"$1"
}
