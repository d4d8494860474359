# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: runs scripts/python/tokline/<command>.py with the pinned NumPy, SciPy, Matplotlib and Jinja2
# of requirements-analysis.txt. The first use installs them below .venv-analysis. If that is impossible, a
# python3 in PATH that has all four is used. TOKLINE_PYTHON=PATH names the Python to use instead; nothing is
# installed then.
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

# Whether an interpreter is 3.11 or newer and has the modules.
has_analysis_modules() {
  PYTHONPATH='' "$1" -c 'import importlib.util as u, sys
names = ("numpy", "scipy", "matplotlib", "jinja2")
sys.exit(sys.version_info < (3, 11) or any(u.find_spec(n) is None for n in names))' 2>/dev/null
}

install_analysis() {
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    why_not="$(python3 --version) is too old; 3.11 or newer is needed"
  elif ! pip_install --retries 1 --timeout 10 -r "$root/scripts/setup/requirements-analysis.txt" \
    >"$venv/pip.log" 2>&1; then
    why_not="pip: $(grep '^ERROR' "$venv/pip.log" | tail -n 1)"
  else
    return 0
  fi
  rm -rf "$venv"
  return 1
}

# find_analysis_python INSTALL: sets analysis_python. INSTALL is yes, or no to use only what is there.
# On failure sets why_not, in words.
find_analysis_python() {
  analysis_python=${TOKLINE_PYTHON:-} why_not=""
  if [[ -n $analysis_python ]]; then
    why_not="TOKLINE_PYTHON is '$analysis_python', which is no Python 3.11 or newer with these modules"
    has_analysis_modules "$analysis_python"
    return
  fi
  why_not="python3 is missing"
  command -v python3 >/dev/null || return
  local pins=$root/scripts/setup/requirements-analysis.txt
  if venv_is_made .venv-analysis "$pins"; then
    analysis_python=$venv/bin/python
    [[ -L $venv/fallback ]] || return 0
    analysis_python=$(readlink "$venv/fallback")
    ! has_analysis_modules "$analysis_python" || return 0
    rm -rf "$venv"
  fi
  why_not="${venv#"$root/"} has not been made"
  if [[ $1 == yes ]] && pinned_venv .venv-analysis install_analysis "$pins"; then
    analysis_python=$venv/bin/python
    return
  fi
  while IFS= read -r analysis_python; do
    has_analysis_modules "$analysis_python" || continue
    [[ $1 == yes ]] || return 0
    say "using $analysis_python and its own modules: $why_not"
    # Installing is tried, and said, once.
    { mkdir -p "$venv" && echo '*' >"$venv/.gitignore" && ln -s "$analysis_python" "$venv/fallback" &&
      touch "$venv/made"; } 2>/dev/null || true
    return 0
  done < <(type -ap python3)
  return 1
}

# run_tokline PYTHON COMMAND ARGUMENT...: becomes python -m tokline COMMAND.
run_tokline() { PYTHONPATH=$root/scripts/python exec "$1" -m tokline "${@:2}"; }

# plain_python COMMAND ARGUMENT...: for commands that need only the standard library.
plain_python() {
  command -v python3 >/dev/null || die 2 "python3 is missing"
  run_tokline python3 "$@"
}

# analysis COMMAND ARGUMENT...: for all others. Exits with 2 if there is no Python for it.
analysis() {
  trap on_interrupt INT TERM
  find_analysis_python yes || die 2 \
    "needs NumPy, SciPy, Matplotlib and Jinja2, from PyPI or in a python3 in PATH: $why_not"
  trap - INT TERM
  run_tokline "$analysis_python" "$@"
}
