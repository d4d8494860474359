# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: runs scripts/python/tokline/<command>.py with the pinned NumPy, SciPy, Matplotlib and Jinja2
# of requirements-analysis.txt. The first use installs them into .venv-analysis. Where that is impossible,
# a python3 in PATH that has all four is used. TOKLINE_PYTHON=PATH names the Python to use instead;
# nothing is installed then.

analysis_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$analysis_root/scripts/setup/common.sh"

# Whether an interpreter is 3.11 or newer and has the modules.
has_analysis_modules() {
  PYTHONPATH='' "$1" -c 'import importlib.util as u, sys
names = ("numpy", "scipy", "matplotlib", "jinja2")
sys.exit(sys.version_info < (3, 11) or any(u.find_spec(n) is None for n in names))' 2>/dev/null
}

# Prints the first python3 in PATH that has the modules; fails where there is none.
python_with_modules() {
  local candidate
  while IFS= read -r candidate; do
    if has_analysis_modules "$candidate"; then
      echo "$candidate"
      return
    fi
  done < <(type -ap python3)
  return 1
}

# Installs into a folder aside, which becomes the environment by one rename. Sets why_not on failure.
make_environment() {
  local folder=$1 new=$1.new
  say "making ${folder#"$analysis_root"/}: NumPy, SciPy, Matplotlib and Jinja2 from PyPI, once"
  rm -rf "$new"
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    why_not="$(python3 --version) is too old; 3.11 or newer is needed"
  elif ! python3 -m venv "$new" >/dev/null 2>&1; then
    why_not="python3 -m venv failed; is python3-venv installed?"
  elif ! "$new/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 \
    --timeout 10 --requirement "$analysis_root/scripts/setup/requirements-analysis.txt" \
    >"$new/pip.log" 2>&1; then
    why_not="pip: $(grep '^ERROR' "$new/pip.log" | tail -n 1)"
  else
    mv "$new" "$folder"
    return
  fi
  rm -rf "$new"
  return 1
}

# find_analysis_python INSTALL: sets analysis_python. INSTALL is yes, or no to use only what is there.
# On failure sets why_not, in words.
find_analysis_python() {
  analysis_python="" why_not=""
  if [[ -n ${TOKLINE_PYTHON:-} ]]; then
    analysis_python=$TOKLINE_PYTHON
    has_analysis_modules "$TOKLINE_PYTHON" && return
    why_not="TOKLINE_PYTHON is '$TOKLINE_PYTHON', which is no Python 3.11 or newer with these modules"
    return 1
  fi
  if ! command -v python3 >/dev/null; then
    why_not="python3 is missing"
    return 1
  fi

  # One folder a set of pins and interpreter. <folder>.fallback names a Python that was found where
  # nothing could be installed: installing is tried, and said, once.
  local base=$analysis_root/.venv-analysis pins=$analysis_root/scripts/setup/requirements-analysis.txt
  local key folder
  key=$({ readlink -f "$(command -v python3)" && cat "$pins"; } | cksum)
  folder=$base/${key%% *}
  if [[ -x $folder/bin/python ]]; then
    analysis_python=$folder/bin/python
    return
  fi
  if analysis_python=$(cat "$folder.fallback" 2>/dev/null) &&
    has_analysis_modules "$analysis_python"; then
    return
  fi

  if [[ $1 != yes ]]; then
    why_not=".venv-analysis has not been made"
  elif ! { mkdir -p "$base" && echo '*' >"$base/.gitignore"; } 2>/dev/null; then
    why_not="$base cannot be written"
  else
    # Under a lock: of several scripts that start at once, one installs and the others wait. What
    # other pins needed, and what an interrupted installation left, is removed.
    {
      flock 9
      if [[ ! -x $folder/bin/python ]]; then
        find "$base" -mindepth 1 -maxdepth 1 ! -name .gitignore ! -name lock -exec rm -rf {} +
        make_environment "$folder" || true
      fi
    } 9>"$base/lock"
    if [[ -x $folder/bin/python ]]; then
      analysis_python=$folder/bin/python
      return
    fi
  fi
  analysis_python=$(python_with_modules) || return 1
  if [[ $1 == yes ]]; then
    say "using $analysis_python and its own modules: $why_not"
    { echo "$analysis_python" >"$folder.fallback"; } 2>/dev/null || true
  fi
}

# run_tokline PYTHON COMMAND ARGUMENT...: becomes python -m tokline COMMAND.
run_tokline() {
  PYTHONPATH=$analysis_root/scripts/python PYTHONDONTWRITEBYTECODE=1 exec "$1" -m tokline "${@:2}"
}

# plain_python COMMAND ARGUMENT...: of commands that need the standard library alone.
plain_python() {
  command -v python3 >/dev/null || die 2 "python3 is missing"
  run_tokline python3 "$@"
}

# analysis COMMAND ARGUMENT...: of all others. Exits 2 where there is no Python for it.
analysis() {
  trap on_interrupt INT TERM
  find_analysis_python yes || die 2 \
    "needs NumPy, SciPy, Matplotlib and Jinja2, from PyPI or in a python3 in PATH: $why_not"
  trap - INT TERM
  run_tokline "$analysis_python" "$@"
}
