# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: decides where the CUDA toolkit comes from.

# The oldest nvcc that compiles Tokline: C++20, sm_90a and the compilers of Ubuntu 24.04.
min_nvcc=12.4

gpu_present() {
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || [[ -e /dev/dxg ]] ||
    nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null  # not -q, which would end nvidia-smi by a signal
}

# Waits until no other script measures on this GPU, and makes others wait until this one ends. The GPU is the
# first that CUDA_VISIBLE_DEVICES names: scripts on different GPUs run at the same time.
take_gpu() {
  [[ -z ${TOKLINE_GPU_TAKEN:-} ]] || return 0  # the script that runs this one has it
  local lock=${CUDA_VISIBLE_DEVICES:-0}
  lock=${lock%%,*}
  lock=/tmp/tokline-gpu-${lock//\//_}.lock
  (umask 0; : >>"$lock") 2>/dev/null || true  # another user's file cannot be written, only locked
  exec 8<"$lock"
  flock --nonblock 8 || {
    say "waiting: another run measures on this GPU"
    flock 8
  }
  export TOKLINE_GPU_TAKEN=yes
}

# Whether a CUDA test asserts times: it must not run beside another program, nor under a tool that stretches them.
asserts_times() { [[ ${1##*/} == @(*_timer|*_timing|step_profiler|ops_in_place|device_memory|work_stream|cheats)_cuda_test ]]; }

# How many GPUs programs see.
gpu_count() {
  if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '^[^-]'
  else
    nvidia-smi -L | grep -c '^GPU'
  fi
}

# Whether a CUDA test divides its work among all GPUs that it sees.
uses_several_gpus() { [[ ${1##*/} == @(all_reduce_norm|coherence|decoder_golden|sharded_decode)_cuda_test ]]; }

# Whether a CUDA test may skip all its tests here: it divides its work, and there is one GPU.
lacks_gpus() { uses_several_gpus "$1" && (($(gpu_count) < 2)); }

# Prints the path of the system's nvcc; fails if there is none.
system_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" "$(command -v nvcc)" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" \
    /usr/local/cuda/bin/nvcc; do
    if [[ -n $candidate && -x $candidate ]]; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

nvcc_release() { "$1" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p'; }
is_at_least() { [[ $(printf '%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# Makes a toolkit folder of links to PyPI's packages: they have only lib/ with versioned names, but nvcc and
# CMake look for lib64/ and lib<name>.so.
install_pypi_toolkit() {
  install_requirements cuda
  nvcc=$venv/cuda/bin/nvcc
  [[ -x $nvcc && $venv/cuda/lib64 -nt $venv/requirements-cuda.txt ]] && return
  local packages library name
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
  [[ -x $packages/bin/nvcc ]] || die 2 "nvidia-cuda-nvcc has no nvcc in $packages/bin"
  rm -rf "$venv/cuda" "$venv/cuda.new"
  # bin is a folder and not a link: nvcc looks for everything else in bin/.., which must not lead to $packages.
  mkdir -p "$venv/cuda.new"/{bin,lib64}
  ln -s "$packages"/bin/* "$venv/cuda.new/bin/"
  ln -s "$packages"/{include,nvvm} "$venv/cuda.new/"
  for library in "$packages"/lib/*.{a,so.*}; do
    name=${library##*/}
    ln -s "$library" "$venv/cuda.new/lib64/$name"
    [[ $name == *.a ]] || ln -s "$name" "$venv/cuda.new/lib64/${name%%.so.*}.so"
  done
  touch "$venv/cuda.new/lib64"
  mv "$venv/cuda.new" "$venv/cuda"
}

# choose_cuda WANTED: sets cuda_build to ON or OFF, nvcc, and cuda_note, which is the reason in words.
# WANTED says what --cuda auto does if there is a toolkit but no GPU: `compile` or `skip`.
choose_cuda() {
  cuda_build=OFF nvcc="" cuda_note=""
  case $preset in
    cpu | asan)
      [[ $cuda =~ ^(auto|off)$ ]] || die 2 "--cuda $cuda contradicts --preset $preset"
      cuda_note="preset $preset is host code only"
      return
      ;;
    cuda) [[ $cuda != off ]] || die 2 "--cuda off contradicts --preset cuda" ;;
  esac
  local found="" release="" mode=$cuda
  if [[ $mode != off && $mode != pypi ]] && found=$(system_nvcc); then
    release=$(nvcc_release "$found")
  fi
  if [[ $mode == auto ]]; then
    if ! gpu_present && [[ $1 == skip && $preset != cuda ]]; then
      mode=off cuda_note="no CUDA device"
    elif [[ -n $release ]] && is_at_least "$release" "$min_nvcc"; then
      mode=system
    elif gpu_present || [[ $preset == cuda || ($1 == compile && -n ${CI:-}) ]]; then
      mode=pypi
    else
      mode=off cuda_note="no CUDA toolkit and no CUDA device"
    fi
  fi
  case $mode in
    off) cuda_note=${cuda_note:-"--cuda off"} ;;
    system)
      [[ -n $release ]] || die 2 "--cuda system: no nvcc in PATH, CUDACXX, CUDA_HOME or /usr/local/cuda"
      is_at_least "$release" "$min_nvcc" ||
        die 2 "$found is release $release; $min_nvcc or newer is needed; --cuda pypi installs one"
      cuda_build=ON nvcc=$found cuda_note="$nvcc, release $release"
      ;;
    pypi)
      install_pypi_toolkit
      cuda_build=ON cuda_note="$nvcc, release $(nvcc_release "$nvcc")"
      ;;
  esac
}
