# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced by scripts/test, scripts/bench and scripts/format: arguments, progress, failure.
# Exit codes: 0 success, 1 failure, 2 usage or something that cannot be installed, 130 interrupted.

program=${0##*/}  # the name in front of error messages

# Everything below writes to standard error, so that standard output has only results.
say() { printf '[%4ds] %s\n' "$SECONDS" "$*" >&2; }

# die CODE LINE...
die() {
  local code=$1 lines=("$program: $2" "${@:3}")
  printf '%s\n' "${lines[@]//$'\e'/\\x1b}" >&2
  exit "$code"
}

# from_here PATH: a path that the caller gave, from the folder where the caller is. Scripts go to the repository's root
# with cd, and nowhere else.
from_here() {
  [[ $1 == /* || $OLDPWD -ef $PWD ]] && echo "$1" || echo "$OLDPWD/$1"
}

on_interrupt() {
  trap - INT TERM
  printf '\n%s: interrupted\n' "$program" >&2
  exit 130
}

# parse_arguments "$@": sets preset, cuda, jobs and install; the variables of the options and flags that the
# script adds in own_options and own_flags (`verify-only` sets verify_only); passed_through, which has all other
# arguments; and unknown, which has those of them that are not after --.
parse_arguments() {
  preset="" cuda=auto jobs="" install=yes passed_through=() unknown=()
  local name want_help=no
  while (($#)); do
    name=${1#--} name=${name%%=*}
    if [[ $1 == -h || $1 == --help ]]; then
      want_help=yes
    elif [[ $1 == --no-install ]]; then
      install=no
    elif [[ $1 == -- ]]; then
      passed_through+=("${@:2}")
      break
    elif [[ $1 == --* && " ${own_flags[*]} " == *" $name "* ]]; then
      [[ $1 != *=* ]] || die 2 "--$name takes no value"
      printf -v "${name//-/_}" yes
    elif [[ $1 == --* && " preset cuda jobs ${own_options[*]} " == *" $name "* ]]; then
      if [[ $1 == *=* ]]; then
        printf -v "${name//-/_}" '%s' "${1#*=}"
      else
        (($# >= 2)) && [[ $2 != --* ]] || die 2 "$1 needs a value"
        printf -v "${name//-/_}" '%s' "$2"
        shift
      fi
    else
      passed_through+=("$1") unknown+=("$1")
    fi
    shift
  done
  if [[ $want_help == yes ]]; then
    print_help
    exit 0
  fi
  [[ $cuda =~ ^(auto|system|pypi|off)$ ]] ||
    die 2 "--cuda is '$cuda'; allowed: auto, system, pypi, off"
  [[ $jobs =~ ^([1-9][0-9]{0,3})?$ ]] || die 2 "--jobs is '$jobs'; allowed: 1 to 9999"
  if [[ -n $preset ]]; then
    local presets=(CMakePresets.json)
    [[ ! -f CMakeUserPresets.json ]] || presets+=(CMakeUserPresets.json)
    if [[ $preset == base ]] || ! grep -Eq "\"name\": *\"$preset\"" "${presets[@]}"; then
      die 2 "--preset is '$preset'; allowed: asan, ci, cpu, cuda, or one of CMakeUserPresets.json"
    fi
  fi
}

# require_known NAMES WHERE: ends with a line if passed_through has an option that is none of NAMES, or a word that
# follows no option, before hours of work would show it.
require_known() {
  local argument before=""
  for argument in "${passed_through[@]}"; do
    if [[ $argument == --* || ($argument == -* && $before != --*) ]]; then
      [[ " $1 " == *" ${argument%%=*} "* || $argument =~ ^-j[0-9]+$ ]] ||
        die 2 "unknown argument '$argument'; --help lists those of this script, and $2"
    else
      [[ $before == -* ]] || die 2 "unexpected argument '$argument'; --help lists those of this script, and $2"
    fi
    before=$argument
    [[ $argument != *=* && ! $argument =~ ^-j[0-9] ]] || before=""
  done
}

# kernel_names FILE: the kernels that the add_kernel() lines of a root CMakeLists.txt name.
kernel_names() { sed -n 's/^add_kernel(\([a-z0-9_]*\).*/\1/p' "$1"; }

# As many compilers as there are cores and 1.5 GiB of free memory each.
default_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1572864)}' /proc/meminfo 2>/dev/null || echo "$cores")
  ((memory < cores)) && cores=$memory
  echo $((cores > 0 ? cores : 1))
}

# program_commit DIR: the commit of the tree that the programs in DIR were built from.
program_commit() { "$1/tokline" --version | sed -E 's/.*\(commit ([^,]*),.*/\1/'; }
