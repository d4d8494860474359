# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: installs the system packages that are missing, or lists them and exits 2.

# "<Debian package>|<how to see that it is there>". Headers are looked for, not packages, so that a
# system without dpkg, or with libraries from elsewhere, is not asked for what it has.
required_packages=(
  'g++|has_cxx20'
  'cmake|has_cmake'
  'ninja-build|has_command ninja'
  'git|has_command git'
  'python3|has_command python3'
  'python3-venv|has_venv'
  'libeigen3-dev|has_header Eigen/Core'
  'nlohmann-json3-dev|has_header nlohmann/json.hpp'
  'libgtest-dev|has_header gtest/gtest.h'
  'libgmock-dev|has_header gmock/gmock.h'
  'libbenchmark-dev|has_header benchmark/benchmark.h'
)

has_command() { command -v "$1" >/dev/null; }
has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_cxx20() { echo '#include <concepts>' | ${CXX:-g++} -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; }
has_header() {
  echo "#include <$1>" | ${CXX:-g++} -std=c++20 -I/usr/include/eigen3 -E -x c++ - >/dev/null 2>&1
}
has_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')
  [[ -n $version && $(printf '%s\n' 3.25 "$version" | sort -V | head -n 1) == 3.25 ]]
}

# Sets `missing` to the packages whose probe fails.
find_missing_packages() {
  missing=()
  local entry
  for entry in "${required_packages[@]}"; do
    ${entry#*|} || missing+=("${entry%%|*}")
  done
}

# One line a reason why `missing` stays missing, then exit 2.
die_missing() {
  local names=("${missing[@]/%cmake/cmake (3.25 or newer)}")
  die 2 "$1; missing:" "${names[@]/#/  }" "on Debian and Ubuntu: apt-get install ${missing[*]}"
}

install_packages() {
  find_missing_packages
  ((${#missing[@]})) || return 0
  [[ $install == yes ]] || die_missing "--no-install was given"
  has_command apt-get || die_missing "there is no apt-get here to install packages with"
  local as_root=()
  if ((EUID != 0)); then
    sudo -n true 2>/dev/null || die_missing "installing packages needs root, or sudo without a password"
    as_root=(sudo -n)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  say "installing ${missing[*]} and ccache"
  "${apt[@]}" update >&2 || die_missing "apt-get update failed"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 || die_missing "apt-get failed"
  "${apt[@]}" install -y --no-install-recommends ccache >/dev/null 2>&1 || true  # only speeds up
  find_missing_packages
  ((${#missing[@]} == 0)) || die_missing "the packages that apt-get installed do not suffice"
}
