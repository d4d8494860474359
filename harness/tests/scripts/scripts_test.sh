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
for script in test bench "records gate_change"; do
  read -ra words <<<"scripts/$script"
  expect 0 "Usage: scripts/$script" "${words[@]}" --help
  expect 0 "Usage: scripts/$script" "${words[@]}" --preset cpu --anything -h
  expect 2 "--cuda is 'maybe'; allowed: auto, system, pypi, off" "${words[@]}" --cuda maybe
  expect 2 "--preset is 'none'; allowed: asan, ci, cpu, cuda" "${words[@]}" --preset=none
  expect 2 "--preset is 'base'; allowed:" "${words[@]}" --preset base
  expect 2 "--jobs is '0'; allowed: 1 to 9999" "${words[@]}" --jobs 0
  expect 2 "--preset needs a value" "${words[@]}" --preset
done
expect 0 "Usage: scripts/records VERB" scripts/records --help
expect 2 "a verb is missing" scripts/records
expect 2 "unknown verb 'gates', did you mean 'gate'?; allowed: table compare changes gate" scripts/records gates
expect 2 "unknown verb '.*'; allowed:" scripts/records '.*'
expect 0 "Usage: scripts/format" scripts/format --help
expect 2 "unknown argument 'x'" scripts/format --check x
expect 2 "--only names 'nothing'; allowed:" scripts/bench --only nothing
expect 2 "--device is 'tpu'; allowed: cpu, cuda" scripts/records gate_change --device tpu
expect 2 "--rounds is '0'; allowed: 1 to 99999" scripts/records gate_change --rounds 0
expect 2 "--cuda off and --preset '' contradict --device cuda" scripts/records gate_change --cuda off
expect 0 "Usage: scripts/maintain/record" scripts/maintain/record --help
expect 2 "one folder is needed" scripts/maintain/record
expect 2 "unknown option '--fast'" scripts/maintain/record --fast
expect 0 "usage: scripts/records history" scripts/records history --help
expect 2 "unrecognized arguments: --fast" scripts/records history --fast
expect 2 "--branch: expected one argument" scripts/records history --branch
if git rev-parse --git-dir >/dev/null 2>&1; then
  expect 2 "--head nothing: no such commit" scripts/records gate_change --head nothing
  expect 2 "--remote nowhere: no such remote" scripts/records history --remote nowhere
fi
expect 2 "$scratch/none.jsonl: no records" scripts/records history "$scratch/none.jsonl"
expect 0 "| met |" scripts/maintain/floors results/h200
expect 2 "No such file" scripts/maintain/floors "$scratch/nowhere"
expect 0 "chunk_decode" scripts/maintain/mutate list
expect 0 "Usage: scripts/maintain/fuzz" scripts/maintain/fuzz --help
expect 0 "shard_index" scripts/maintain/fuzz --list
expect 2 "--runs is 'x'; allowed: a positive number" scripts/maintain/fuzz --runs x
expect 2 "unknown target 'elf'; allowed: chat_template config safetensors" scripts/maintain/fuzz elf
expect 77 "no nothing++ with libFuzzer" env CLANGXX=nothing++ scripts/maintain/fuzz --build "$scratch/fuzz"
expect 2 "the following arguments are required: --beside, --record" scripts/peers
expect 2 "'(' is no regular expression" scripts/peers --beside x --record y --only '('
expect 2 "--python is '$scratch/none'; there is no such program" scripts/peers --python "$scratch/none"
expect 2 "--python is '/bin/false'; it is no Python" scripts/peers --python /bin/false
for bad in nan inf 0 x; do
  expect 2 "--time-limit: is '$bad'; it must be a number above 0" scripts/peers --beside x --record y --time-limit $bad
done
expect 2 "unknown argument '--bogus'; arguments of the bench programs go after --" scripts/records gate_change --bogus
expect 2 "no *_cuda_test in --bin" scripts/maintain/sanitize --bin "$scratch/nowhere"
expect 2 "--jobs is '99999999999999999999'; allowed: 1 to 9999" scripts/bench --jobs 99999999999999999999
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
  retried_file=$scratch/retried
  GITHUB_STEP_SUMMARY=$scratch/summary name_retried
)
flaky_test once true
flaky_test never false
expect 0 "passed no, retried ''" run_flaky once no
rm "$scratch/once/seen"
expect 0 "passed yes, retried 'once'" run_flaky once yes
expect 0 "Failed at first, passed alone: once" cat "$scratch/summary"
expect 0 "once" cat "$scratch/retried"
rm "$scratch/summary" "$scratch/retried"
expect 0 "passed yes, retried ''" run_flaky once yes
expect 0 "passed no, retried ''" run_flaky never yes
expect 1 "No such file" cat "$scratch/summary"
# Of two that fail at first, the one that passes later is named although the other fails again.
mkdir "$scratch/both"
cat "$scratch/once/CTestTestfile.cmake" "$scratch/never/CTestTestfile.cmake" | awk '!/sound/ || !seen++' \
  >"$scratch/both/CTestTestfile.cmake"
rm -f "$scratch/once/seen"
expect 0 "passed no, retried 'once'" run_flaky both yes
expect 0 "once" cat "$scratch/retried"
expect 0 "--retry" scripts/test --help
expect 2 "unknown argument '--bogus'" scripts/test --bogus
expect 2 "unexpected argument 'norm_test'" scripts/test -j2 norm_test
expect 2 "--out /proc: the folder cannot be written" scripts/bench --out /proc
expect 2 "--retried $scratch/file/x: the file cannot be written" scripts/test --retried "$scratch/file/x"

# The scripts that read records: their help, bad options, and no colour in a pipe.
source scripts/setup/analysis.sh
if find_analysis_python no; then
  mapfile -t commands < <(
    printf 'scripts/maintain/%s\n' "believe report" floors
    scripts/records --help | sed -n 's|^  \([a-z]*\)  .*|scripts/records \1|p'
  )
  for script in "${commands[@]}"; do
    read -ra words <<<"$script"
    expect 2 "$script: error" "${words[@]}" --no-such-option
    help=$("${words[@]}" --help 2>&1)
    if [[ $help != *"$script"* || $help == *$'\e'* ]] || ! grep -qi 'exit codes' <<<"$help"; then
      echo "FAILED: $script --help has colour in a pipe, no example or no exit codes: $help"
      failures=$((failures + 1))
    fi
  done
  expect 2 "TOKLINE_PYTHON is '/bin/false'" env TOKLINE_PYTHON=/bin/false scripts/records compare
else
  echo "not tested: the scripts that read records: $why_not"
  success=77
fi

# A machine with a shell and nothing else: every package is listed, and nothing is left behind.
mkdir "$scratch/bin" "$scratch/tree"
for tool in bash env dirname readlink cat grep sed sort head mkdir rm mktemp nproc awk; do
  ln -s "$(command -v "$tool")" "$scratch/bin/$tool"
done
cp -r CMakePresets.json CMakeLists.txt scripts "$scratch/tree/"
mkdir -p "$scratch/tree/models/qwen3-lookup"
cp models/qwen3-lookup/config.json "$scratch/tree/models/qwen3-lookup/"
for script in test bench; do
  for package in g++ 'cmake (3.25 or newer)' ninja-build git python3-venv libgtest-dev; do
    expect 2 "  $package" env -i PATH="$scratch/bin" "$scratch/tree/scripts/$script" --cuda off
  done
  expect 2 "there is no apt-get here" env -i PATH="$scratch/bin" "$scratch/tree/scripts/$script"
  expect 2 "--no-install was given" env -i PATH="$scratch/bin" \
    "$scratch/tree/scripts/$script" --no-install
done
touch "$scratch/a--b"
expect 0 "usage: scripts/model" scripts/model --help
expect 2 "either a NAME or --gguf FILE is needed; the names are smollm2-135m" scripts/model
expect 2 "no model is named 'smollm'; the names are smollm2-135m" scripts/model smollm
expect 2 "no model is named 'x.gguf'; the names are smollm2-135m; for a file there is --gguf" scripts/model x.gguf
expect 2 "--gguf $scratch/gone: there is no such file" scripts/model --gguf "$scratch/gone"
expect 2 "'a--b' cannot be a model's name; give --out DIR" scripts/model --gguf "$scratch/a--b"
expect 2 "neither XDG_CACHE_HOME nor HOME is set" env -u HOME -u XDG_CACHE_HOME scripts/model smollm2-135m
expect 2 "it is there already, and scripts/model has not made it" scripts/model smollm2-135m --out "$scratch"
expect 2 "model: python3 is missing" env -i PATH="$scratch/bin" "$scratch/tree/scripts/model"
for script in golden train_tiny tokenizer_golden trained_golden; do
  expect 2 "$script: python3 is missing" env -i PATH="$scratch/bin" "$scratch/tree/scripts/maintain/$script"
done
# Arguments are looked at before anything is installed.
without_pip=(env PATH="$scratch/bin:$PATH")
printf '#!/bin/sh\n[ "$1" != -m ] || exit 9\nexec %q "$@"\n' "$(command -v python3)" >"$scratch/bin/python3"
chmod +x "$scratch/bin/python3"
for script in golden train_tiny tokenizer_golden trained_golden; do
  expect 0 "usage: scripts/maintain/$script" "${without_pip[@]}" "$scratch/tree/scripts/maintain/$script" --help
done
for arguments in --fast '--check x' '--find-seed qwen3_tiny' '--check --find-seed qwen3_tiny 4'; do
  expect 2 "scripts/maintain/golden: error: " "${without_pip[@]}" "$scratch/tree/scripts/maintain/golden" $arguments
done
for arguments in --bogus '--seed x' '--effort 0' "--evaluate --out $scratch" "--out $scratch"; do
  expect 2 "scripts/maintain/train_tiny: error: " "${without_pip[@]}" "$scratch/tree/scripts/maintain/train_tiny" $arguments
done
for arguments in --bogus '--seed x' '--strings 0' '--check --seed 2' "--check --out $scratch" "--out $scratch/file"; do
  expect 2 "scripts/maintain/tokenizer_golden: error: " "${without_pip[@]}" "$scratch/tree/scripts/maintain/tokenizer_golden" $arguments
done
expect 2 "python3 -m venv failed" "${without_pip[@]}" "$scratch/tree/scripts/maintain/tokenizer_golden"
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
