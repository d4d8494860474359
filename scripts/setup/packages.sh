# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: installs the system packages that are missing, or lists them and exits 2.

# "<Debian package>|<how to see that it is there>". Headers are searched for, not packages, so that a
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
  'libpcre2-dev|has_header pcre2.h'
  'libutf8proc-dev|has_header utf8proc.h'
  'libgtest-dev|has_header gtest/gtest.h'
  'libgmock-dev|has_header gmock/gmock.h'
  'libbenchmark-dev|has_header benchmark/benchmark.h'
)

has_command() { command -v "$1" >/dev/null; }
has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_cxx20() { echo '#include <concepts>' | ${CXX:-g++} -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; }
has_header() {
  echo "#include <$1>" | ${CXX:-g++} -std=c++20 -DPCRE2_CODE_UNIT_WIDTH=8 -I/usr/include/eigen3 -E -x c++ - >/dev/null 2>&1
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

# die_missing WHY: says why the packages in `missing` stay missing, and exits with 2.
die_missing() {
  local names=("${missing[@]/%cmake/cmake (3.25 or newer)}")
  die 2 "$1; missing:" "${names[@]/#/  }" "on Debian and Ubuntu: apt-get install ${missing[*]}"
}

# Sets apt to the command that installs packages; on failure sets why_not, in words.
find_apt() {
  local as_root=()
  if ! has_command apt-get; then
    why_not="there is no apt-get here to install packages with"
    return 1
  fi
  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null; then
      why_not="installing packages needs root, or sudo without a password"
      return 1
    fi
    as_root=(sudo -n)
  fi
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
}

install_packages() {
  find_missing_packages
  ((${#missing[@]})) || return 0
  [[ $install == yes ]] || die_missing "--no-install was given"
  find_apt || die_missing "$why_not"
  say "installing ${missing[*]} and ccache"
  "${apt[@]}" update >&2 || die_missing "apt-get update failed"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 || die_missing "apt-get failed"
  "${apt[@]}" install -y --no-install-recommends ccache >/dev/null 2>&1 || true  # only speeds up
  find_missing_packages
  ((${#missing[@]} == 0)) || die_missing "the packages that apt-get installed do not suffice"
}

# CI tests ranks in several processes too. Open MPI is 12 MB to download and 53 MB on disk, and takes 14 s to
# install; anyone else asks apt for it.
install_mpi() {
  [[ -n ${CI:-} && $install == yes ]] || return 0
  ! has_command mpirun || return 0
  if find_apt; then
    say "installing Open MPI"
    "${apt[@]}" install -y --no-install-recommends libopenmpi-dev openmpi-bin >&2 && return
  fi
  say "no Open MPI here: ranks in several processes are not tested"
}

# The test of the report looks at it in a browser, and is skipped if there is none. Debian has one
# as a package; Ubuntu's is a snap, which containers cannot run, but Ubuntu's CI images have Chrome.
install_browser() {
  local name
  for name in chromium chromium-browser google-chrome; do
    ! has_command "$name" || return 0
  done
  if [[ $install == yes ]] && grep -qx 'ID=debian' /etc/os-release 2>/dev/null && find_apt; then
    say "installing chromium, in which a test looks at the report"
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends chromium; } \
      >/dev/null 2>&1 && return
  fi
  say "no Chromium here: no test looks at the drawn report"
}
