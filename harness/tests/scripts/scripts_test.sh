#!/usr/bin/env bash
# scripts_test.sh ROOT: what the scripts do with bad input, on a machine that lacks packages, and in a pipe.
# Nothing here installs, builds or touches the tree. Exits 77 where all passed but something could not be
# tried.
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
for script in test bench gate_change; do
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
expect 2 "--device is 'tpu'; allowed: cpu, cuda" scripts/gate_change --device tpu
expect 2 "--rounds is '0'; allowed: a positive number" scripts/gate_change --rounds 0
expect 2 "--cuda off and --preset '' contradict --device cuda" scripts/gate_change --cuda off
expect 0 "Usage: scripts/record" scripts/record --help
expect 2 "one folder is needed" scripts/record
expect 2 "unknown option '--fast'" scripts/record --fast
expect 0 "Usage: scripts/history" scripts/history --help
expect 2 "unknown option '--fast'" scripts/history --fast
expect 2 "--branch needs a value" scripts/history --branch
if git rev-parse --git-dir >/dev/null 2>&1; then
  expect 2 "--head nothing: no such commit" scripts/gate_change --head nothing
  expect 2 "--remote nowhere: no such remote" scripts/history --remote nowhere
fi
expect 2 "$scratch/none.jsonl: no records" scripts/history "$scratch/none.jsonl"
expect 0 "| met |" scripts/floors results/h200
expect 2 "No such file" scripts/floors "$scratch/nowhere"
expect 0 "chunk_decode" scripts/mutate list
expect 0 "Usage: scripts/fuzz" scripts/fuzz --help
expect 0 "shard_index" scripts/fuzz --list
expect 2 "--runs is 'x'; allowed: a positive number" scripts/fuzz --runs x
expect 2 "unknown target 'elf'; allowed: config safetensors" scripts/fuzz elf
expect 77 "no nothing++ with libFuzzer" env CLANGXX=nothing++ scripts/fuzz --build "$scratch/fuzz"
expect 2 "the following arguments are required: --beside, --record" scripts/peers
expect 2 "'(' is no regular expression" scripts/peers --beside x --record y --only '('
expect 2 "--python is '$scratch/none'; there is no such program" scripts/peers --python "$scratch/none"
expect 2 "unknown argument '--bogus'; what is for the bench programs stands after --" scripts/gate_change --bogus
expect 2 "no *_cuda_test in" scripts/sanitize --bin "$scratch/nowhere"
expect 2 "--device is 'tpu'; allowed: cpu, cuda" scripts/bench --device tpu
expect 2 "--model $scratch has no config.json" scripts/bench --model "$scratch"
touch "$scratch/file"
expect 2 "--model $scratch/gone has no config.json" scripts/bench --model "$scratch/gone"
# A name is looked for later: what else is wrong is said.
expect 2 "--out $scratch/file/x" scripts/bench --model Qwen/Qwen3-0.6B --out "$scratch/file/x"
expect 2 "--out $scratch/file/x: the folder cannot be made" scripts/bench --out "$scratch/file/x"

# A test that fails once passes with --retry, and is named; one that fails always does not.
flaky_test() {
  mkdir -p "$scratch/$1"
  printf 'add_test(sound true)\nadd_test(%s sh -c "test -e %s/seen && %s; e=$?; touch %s/seen; exit $e")\n' \
    "$1" "$scratch/$1" "$2" "$scratch/$1" >"$scratch/$1/CTestTestfile.cmake"
}
run_flaky() (
  source scripts/setup/common.sh
  source scripts/setup/run_tests.sh
  retry=$2
  run_tests "$scratch/$1"
  echo "passed $passed, retried '$retried'"
)
flaky_test once true
flaky_test never false
expect 0 "passed no, retried ''" run_flaky once no
rm "$scratch/once/seen"
expect 0 "passed yes, retried 'once'" run_flaky once yes
expect 0 "passed yes, retried ''" run_flaky once yes
expect 0 "passed no, retried ''" run_flaky never yes
expect 0 "--retry" scripts/test --help

# The scripts that read records: their help, bad options, and no colour in a pipe.
source scripts/setup/analysis.sh
if find_analysis_python no; then
  for script in $(grep -l --directories=skip "^analysis " scripts/*); do
    expect 2 "$script: error" "$script" --no-such-option
    help=$("$script" --help 2>&1)
    if [[ $help != *"$script"* || $help == *$'\e'* ]] || ! grep -qi 'exit codes' <<<"$help"; then
      echo "FAILED: $script --help has colour in a pipe, no example or no exit codes: $help"
      failures=$((failures + 1))
    fi
  done
  expect 2 "TOKLINE_PYTHON is '/bin/false'" env TOKLINE_PYTHON=/bin/false scripts/compare
else
  echo "not tested: the scripts that read records: $why_not"
  success=77
fi

# A machine with a shell and nothing else: every package is listed, and nothing is left behind.
mkdir "$scratch/bin" "$scratch/tree"
for tool in bash env dirname cat grep sed sort head mkdir rm mktemp nproc awk; do
  ln -s "$(command -v "$tool")" "$scratch/bin/$tool"
done
cp -r CMakePresets.json scripts "$scratch/tree/"
mkdir -p "$scratch/tree/models/qwen3-lookup" "$scratch/tree/benches"
cp models/qwen3-lookup/config.json "$scratch/tree/models/qwen3-lookup/"
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
expect 0 "Usage: scripts/train_tiny" env -i PATH="$scratch/bin" "$scratch/tree/scripts/train_tiny" --help
expect 2 "train_tiny: python3 is missing" env -i PATH="$scratch/bin" "$scratch/tree/scripts/train_tiny"
# Arguments are looked at before anything is installed.
without_pip=(env PATH="$scratch/bin:$PATH")
printf '#!/bin/sh\n[ "$1" != -m ] || exit 9\nexec %q "$@"\n' "$(command -v python3)" >"$scratch/bin/python3"
chmod +x "$scratch/bin/python3"
for arguments in --bogus '--seed x' '--effort 0' '--evaluate --rounding' "--evaluate --out $scratch" "--out $scratch"; do
  expect 2 "scripts/train_tiny: error: " "${without_pip[@]}" "$scratch/tree/scripts/train_tiny" $arguments
done
for arguments in --bogus '--seed x' '--strings 0' '--check --seed 2' "--check --out $scratch" "--out $scratch/file"; do
  expect 2 "scripts/tokenizer_golden: error: " "${without_pip[@]}" "$scratch/tree/scripts/tokenizer_golden" $arguments
done
expect 2 "python3 -m venv failed" "${without_pip[@]}" "$scratch/tree/scripts/tokenizer_golden"
left=$(find "$scratch/tree" -name '.venv*' -o -name '*.jsonl' -o -name CMakeCache.txt -o -name '.running*')
if [[ -n $left ]]; then
  echo "FAILED: a run without packages left $left"
  failures=$((failures + 1))
fi

# Scripts on one GPU wait for each other, on two they do not; a script that another runs has the lock already.
take="source scripts/setup/common.sh; source scripts/setup/cuda.sh; take_gpu; echo taken"
holds() { env CUDA_VISIBLE_DEVICES="scripts-test-$$/0,1" bash -c "$take; $1"; }
expect 124 "waiting: another run measures on this GPU" \
  holds "TOKLINE_GPU_TAKEN= timeout 0.5 bash -c '$take'"
expect 0 $'taken\ntaken' holds "TOKLINE_GPU_TAKEN= CUDA_VISIBLE_DEVICES=scripts-test-$$-2 bash -c '$take'"
expect 0 $'taken\ntaken' holds "bash -c '$take'"
rm -f /tmp/tokline-gpu-scripts-test-$$*

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
