# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: configures and builds a preset, and all that this needs.
source scripts/setup/venv.sh
source scripts/setup/packages.sh
source scripts/setup/cuda.sh

# build_preset BUILD_DIR CMAKE_ARGUMENT...: needs preset, cuda_build, nvcc and jobs. Builds `targets` if there are any,
# otherwise everything.
targets=()
# Halves the time of a first build. Without it, a change compiles less, and ccache serves other checkouts too.
several_files_at_once=-DCMAKE_UNITY_BUILD=ON
build_preset() {
  local build_dir=$1
  shift
  local arguments=(--preset "$preset" -B "$build_dir" "$@")
  if [[ $preset != cpu && $preset != asan ]]; then
    arguments+=("-DTOKLINE_CUDA=$cuda_build")
  fi
  if [[ $cuda_build == ON ]]; then
    arguments+=("-DCMAKE_CUDA_COMPILER=$nvcc" "-DCUDAToolkit_ROOT=${nvcc%/bin/nvcc}")
    # Where no GPU runs the code, compiling it is the test: once is enough, except in CI.
    if [[ -n ${CI:-} ]]; then
      arguments+=(-DTOKLINE_EVERY_ARCHITECTURE=ON)
    elif ! gpu_present; then
      arguments+=(-DCMAKE_CUDA_ARCHITECTURES=90a-real)
    fi
  fi
  # Headers that are parsed once for all tests hide that a test does not include them.
  [[ -z ${CI:-} ]] || arguments+=(-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON)
  local launcher
  if launcher=$(command -v ccache); then
    arguments+=("-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher" "-DCMAKE_CUDA_COMPILER_LAUNCHER=$launcher")
    # What was compiled in one checkout is not compiled again in another.
    export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
  fi
  # A folder of another checkout, or of another nvcc, must be configured afresh.
  local cache=$build_dir/CMakeCache.txt
  if [[ -f $cache ]]; then
    grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache" || arguments+=(--fresh)
    if [[ $cuda_build == ON ]] && grep -q '^CMAKE_CUDA_COMPILER:' "$cache"; then
      grep -q "^CMAKE_CUDA_COMPILER:[A-Z]*=$nvcc\$" "$cache" || arguments+=(--fresh)
    fi
  fi
  say "configuring preset $preset in ${build_dir#"$PWD"/}; CUDA $cuda_build: $cuda_note"
  mkdir -p "$build_dir"
  if ! cmake "${arguments[@]}" >"$build_dir/configure.log" 2>&1; then
    cat "$build_dir/configure.log" >&2
    die 1 "configuring failed"
  fi
  say "building with ${jobs:=$(default_jobs)} jobs"
  cmake --build "$build_dir" --parallel "$jobs" ${targets:+--target "${targets[@]}"} >&2 || die 1 "the build failed"
  # In a folder that is kept, a program that no longer exists would still be found and run.
  [[ ! -f $build_dir/build.ninja ]] || ninja -C "$build_dir" -t cleandead >/dev/null
}
