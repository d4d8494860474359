#!/usr/bin/env bash
# scripts_test.sh ROOT: what scripts/test, scripts/bench, scripts/format and scripts/golden do with bad
# input and on a machine that lacks packages. Nothing here installs, builds or touches the tree. Exits 77
# where all passed but something could not be tried.
set -uo pipefail
root=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0 success=0

# expect CODE TEXT COMMAND...: the exit code, and a text in what the command prints.
expect() {
  local code=$1 text=$2 output actual=0
  output=$("${@:3}" 2>&1 </dev/null) || actual=$?
  if ((actual != code)) || [[ $output != *"$text"* ]]; then
    printf 'FAILED: %s\n  expected exit %d and "%s"\n  got exit %d and: %s\n' \
      "${*:3}" "$code" "$text" "$actual" "$output"
    failures=$((failures + 1))
  fi
}

cd "$root" || exit 1
for script in test bench; do
  expect 0 "Usage: scripts/$script" "scripts/$script" --help
  expect 0 "Usage: scripts/$script" "scripts/$script" --preset cpu --anything -h
  expect 2 "--cuda is 'maybe'; allowed: auto, system, pypi, off" "scripts/$script" --cuda maybe
  expect 2 "--preset is 'none'; allowed: asan, ci, cpu, cuda" "scripts/$script" --preset=none
  expect 2 "--preset is 'base'; allowed:" "scripts/$script" --preset base
  expect 2 "--jobs is '0'; allowed: a positive number" "scripts/$script" --jobs 0
  expect 2 "--preset needs a value" "scripts/$script" --preset
done
expect 0 "Usage: scripts/format" scripts/format --help
expect 2 "unknown argument 'x'" scripts/format --check x
expect 2 "--only names 'nothing'; allowed:" scripts/bench --only nothing
expect 0 "| met |" scripts/floors results/h200
expect 2 "No such file" scripts/floors "$scratch/nowhere"
expect 0 "chunk_decode" scripts/mutate list
expect 2 "no *_cuda_test in" scripts/sanitize --bin "$scratch/nowhere"
expect 2 "--device is 'tpu'; allowed: cpu, cuda" scripts/bench --device tpu
expect 2 "--model $scratch has no config.json" scripts/bench --model "$scratch"
touch "$scratch/file"
expect 2 "--out $scratch/file/x: the folder cannot be made" scripts/bench --out "$scratch/file/x"

# A machine with a shell and nothing else: every package is listed, and nothing is left behind.
mkdir "$scratch/bin" "$scratch/tree"
for tool in bash env dirname cat grep sed sort head mkdir rm mktemp nproc awk; do
  ln -s "$(command -v "$tool")" "$scratch/bin/$tool"
done
cp -r CMakePresets.json scripts "$scratch/tree/"
mkdir -p "$scratch/tree/models/qwen3-tiny" "$scratch/tree/benches"
cp models/qwen3-tiny/config.json "$scratch/tree/models/qwen3-tiny/"
touch "$scratch/tree/benches/bench_toy.cc"
for script in test bench; do
  for package in g++ 'cmake (3.25 or newer)' ninja-build git python3-venv libgtest-dev; do
    expect 2 "  $package" env -i PATH="$scratch/bin" "$scratch/tree/scripts/$script" --cuda off
  done
  expect 2 "there is no apt-get here" env -i PATH="$scratch/bin" "$scratch/tree/scripts/$script"
  expect 2 "--no-install was given" env -i PATH="$scratch/bin" \
    "$scratch/tree/scripts/$script" --no-install
done
expect 0 "Usage: scripts/golden" env -i PATH="$scratch/bin" "$scratch/tree/scripts/golden" --help
expect 2 "unknown argument '--fast'" env -i PATH="$scratch/bin" "$scratch/tree/scripts/golden" --fast
expect 2 "python3 is missing" env -i PATH="$scratch/bin" "$scratch/tree/scripts/golden" --check
left=$(find "$scratch/tree" -name '.venv*' -o -name '*.jsonl' -o -name CMakeCache.txt -o -name '.running*')
if [[ -n $left ]]; then
  echo "FAILED: a run without packages left $left"
  failures=$((failures + 1))
fi

# The formatting check names the file that differs and no other, and changes nothing.
PATH=$root/.venv/bin:$PATH
mkdir -p "$scratch/tree/kernels"
cp .clang-format "$scratch/tree/"
echo 'int a;' >"$scratch/tree/kernels/good.h"
if (cd "$scratch/tree" && scripts/format --check --no-install >/dev/null 2>&1); then
  echo 'int  b ;' >"$scratch/tree/kernels/bad.h"
  expect 1 $'run scripts/format:\n  kernels/bad.h' "$scratch/tree/scripts/format" --check --no-install
  expect 0 '' "$scratch/tree/scripts/format" --no-install
  expect 0 'int b;' cat "$scratch/tree/kernels/bad.h"
else
  echo "not tested: scripts/format, there is no clang-format 14.0.6 in PATH or .venv"
  success=77
fi

((failures == 0)) || exit 1
exit "$success"
