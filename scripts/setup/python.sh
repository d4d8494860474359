# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: the project's own Python environment, .venv, from pinned requirement files.

venv=$PWD/.venv

# install_requirements NAME: installs scripts/setup/requirements-NAME.txt unless it is there already.
# The copy in .venv is written last: an interrupted installation is simply repeated.
install_requirements() {
  local requirements=scripts/setup/requirements-$1.txt
  cmp -s "$requirements" "$venv/requirements-$1.txt" && return
  [[ $install == yes ]] || die 2 "--no-install was given; missing: $(tr '\n' ' ' <"$requirements")"
  say "installing $requirements into .venv"
  [[ -x $venv/bin/pip ]] || python3 -m venv "$venv" >&2 ||
    die 2 "python3 -m venv $venv failed; is python3-venv installed?"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" >&2 ||
    die 2 "cannot install from PyPI; missing:" "$(sed 's/^/  /' "$requirements")"
  cp "$requirements" "$venv/requirements-$1.txt.new"
  mv "$venv/requirements-$1.txt.new" "$venv/requirements-$1.txt"
}
