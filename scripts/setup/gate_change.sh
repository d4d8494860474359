# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced by scripts/records gate_change. Says whether a commit made something slower than the commit that it grew
# from: builds both, tests the new one, runs their benches interleaved, and writes a verdict, a report and the records.
cd "$root"
source scripts/setup/build.sh
program=gate_change

print_help() {
  cat <<'HELP'
Usage: scripts/records gate_change [options] [-- arguments of the bench programs]

Builds the merge base of --base and --head, and --head, each in its own worktree; runs the tests of --head (with
--programs, those of these kernels, and nothing else is built);
then runs scripts/records gate --ab over the bench programs of both, in interleaved rounds. Your branch and
your files are not touched; what is not committed is not measured.

  --base REF      the branch that the change goes to. Default: origin/main, else main.
  --head REF      the change. Default: HEAD.
  --device NAME   cuda (default), or cpu, which times the references: to try out the gate.
  --programs NAMES
                  comma-separated: bench programs without `bench_`, and `decoder`. Default: all.
  --model DIR     the checkpoint that the decoder runs: a folder, the name of a model made by
                  scripts/model, or a name in the Hugging Face cache.
                  Default: with a GPU qwen3-0.6b in $TOKLINE_MODELS, else in build/models: random
                  weights, made once and kept, which takes a python3 with torch and transformers. On
                  the CPU, or where they cannot be made, which the verdict then begins with,
                  models/qwen3-lookup, the embedded one of 1.2 MB.
  --rounds N      how often each program of each side runs. Default: that of scripts/records gate.
  --out DIR       where the results go. Default: build/gate_change.
  --no-tests      do not run the tests of --head.
  --build-command COMMAND
                  builds a side instead of CMake. bash runs it in the side's root; it must leave the
                  programs in $BUILD_DIR/bin and the tests in $BUILD_DIR/CTestTestfile.cmake.
  --preset, --cuda, --jobs, --no-install: as in scripts/bench.
  -h, --help      print this text.

DIR then has verdict.md (for a pull request), report.html, a.jsonl (base), b.jsonl (head), and
output.log, which has what the programs printed.

Exit codes: 0 same or faster, 1 slower, or --head does not build or fails a test, 2 usage or something
that cannot be installed, 3 not comparable, or the base does not build, 77 no CUDA device or nothing to
measure, 130 interrupted.

Examples:
  scripts/records gate_change                             # HEAD against origin/main
  scripts/records gate_change --programs linear,decoder --rounds 10
  scripts/records gate_change --base HEAD~1 -- --dtype fp16
HELP
}

own_options=(base head device programs model rounds out build-command) own_flags=(no-tests)
base="" head="" device=cuda programs="" model="" rounds="" out="" build_command="" no_tests=no
parse_arguments "$@"
out=${out:+$(from_here "$out")} out=${out:-build/gate_change}
((${#unknown[@]} == 0)) ||
  die 2 "unknown argument '${unknown[0]}'; arguments of the bench programs go after --"

[[ $device =~ ^(cpu|cuda)$ ]] || die 2 "--device is '$device'; allowed: cpu, cuda"
[[ $rounds =~ ^([1-9][0-9]{0,4})?$ ]] || die 2 "--rounds is '$rounds'; allowed: 1 to 99999"
if [[ $device == cuda && ($cuda == off || $preset == cpu || $preset == asan) ]]; then
  die 2 "--cuda $cuda and --preset '$preset' contradict --device cuda"
fi

[[ $programs =~ ^([a-z0-9_]+(,[a-z0-9_]+)*)?$ ]] ||
  die 2 "--programs is '$programs'; allowed: names with commas between"
# A name in the Hugging Face cache is looked for when there is a program that knows how.
if [[ -n $model && (-e $(from_here "$model") || $model == [./~]*) ]]; then
  model=$(from_here "$model")
  [[ -f $model/config.json ]] || die 2 "--model $model has no config.json"
fi

# commit_of OPTION REF: the full hash.
commit_of() {
  git rev-parse --verify --quiet --end-of-options "$2^{commit}" || die 2 "$1 $2: no such commit"
}
git rev-parse --git-dir >/dev/null 2>&1 || die 2 "$PWD is not a git repository"
if [[ -z $head ]]; then
  changed=$(git status --porcelain | cut -c 4- | sed -n 1,3p | paste -sd ' ')
  [[ -z $changed ]] ||
    die 2 "not committed: $changed; commit it, or give --head HEAD to measure without it"
  head=HEAD
fi
if [[ -z $base ]]; then
  base=main
  ! git rev-parse --verify --quiet origin/main >/dev/null || base=origin/main
fi
head_commit=$(commit_of --head "$head")
base_tip=$(commit_of --base "$base")
base_commit=$(git merge-base "$base_tip" "$head_commit") ||
  die 2 "$base and $head have no merge base; a shallow clone lacks it: git fetch --unshallow"
[[ $base_commit != "$head_commit" ]] || die 2 "$head is part of $base: there is no change to measure"
if [[ -n $programs && -z $build_command ]]; then
  kernels=$(for commit in "$base_commit" "$head_commit"; do kernel_names <(git show "$commit:CMakeLists.txt"); done |
    sort -u | paste -sd ' ')
  for name in ${programs//,/ }; do
    [[ " $kernels decoder " == *" $name "* ]] || die 2 "--programs names '$name'; allowed: $kernels decoder"
  done
fi

mkdir -p "$out" 2>/dev/null && [[ -w $out ]] || die 2 "--out $out: the folder cannot be written"
out=$(cd "$out" && pwd)
rm -f "$out"/{verdict.md,report.html,a.jsonl,b.jsonl,output.log}
# verdict WORDS: starts verdict.md with the outcome and the two commits.
verdict() {
  printf '## %s\n\n' "$1"
  printf '| | commit | |\n|---|---|---|\n'
  git log -1 --format="| base | \`%h\` | %s |" "$base_commit"
  git log -1 --format="| change | \`%h\` | %s |" "$head_commit"
  echo
}
# stop CODE WORDS [LOG]: ends with an outcome that rests on no measurement, and the end of a log.
stop() {
  {
    verdict "$2"
    if [[ -f ${3:-} ]]; then printf '```\n%s\n```\n' "$(tail -n 40 "$3")"; fi
  } >"$out/verdict.md"
  die "$1" "${2,}"
}

trap on_interrupt INT TERM
if [[ $device == cuda ]] && ! gpu_present; then
  stop 77 "No CUDA device: nothing was measured"
fi
find_analysis_python yes || die 2 "needs NumPy, SciPy, Matplotlib and Jinja2: $why_not"
if [[ -z $build_command ]]; then
  install_packages
  preset=${preset:-$device}
  choose_cuda skip
fi

# The worktrees and builds are kept, so that the next change compiles only what it touched.
work=$PWD/build/gate_change.work
mkdir -p "$work"
exec 9>"$work/lock"
flock --nonblock 9 || die 2 "another scripts/records gate_change runs in this checkout"
git worktree prune

# programs_at COMMIT: those of --programs that the commit has.
programs_at() {
  local known
  known=" $(kernel_names <(git show "$1:CMakeLists.txt") | paste -sd ' ') decoder "
  for name in ${programs//,/ }; do
    [[ $known != *" $name "* ]] || echo "$name"
  done
}

# targets_of COMMIT TESTS: the targets that are needed; none stands for all. The decoder is tested by everything.
targets_of() {
  [[ -n $programs && ! ($2 == ON && ,$programs, == *,decoder,*) ]] || return 0
  local name
  for name in $(programs_at "$1"); do
    if [[ $name == decoder ]]; then echo tokline; else echo "bench_$name"; fi
    [[ $2 == OFF ]] || echo "${name}_test"
    [[ $2 == OFF || $cuda_build == OFF ]] || echo "${name}_cuda_test"
  done
}

# build SIDE COMMIT CMAKE_ARGUMENT...: builds into build_of SIDE. Both are at the same place of their worktrees, so that
# ccache compiles once what the sides share.
build_of() { echo "$work/$1/build/gate"; }
build() {
  local side=$1 tree=$work/$1 commit=$2
  say "building $side: $(git log -1 --format='%h %s' "$commit")"
  if [[ -e $tree/.git ]]; then
    git -C "$tree" checkout --quiet --force --detach "$commit" && git -C "$tree" clean -ffdxq -e /build
  else
    rm -rf "$tree"
    git worktree add --quiet --detach "$tree" "$commit"
  fi || die 1 "$tree cannot be made a worktree of $commit"
  (
    cd "$tree"
    export BUILD_DIR
    BUILD_DIR=$(build_of "$side")
    if [[ -n $build_command ]]; then
      rm -rf "$BUILD_DIR"
      mkdir -p "$BUILD_DIR"
      bash -c "$build_command"
    else
      build_preset "$BUILD_DIR" -DTOKLINE_BUILD_BENCHES=ON "${@:3}"
    fi
  ) </dev/null 2>&1 | tee "$work/$side.log" >&2
}
tests=ON
[[ $no_tests == no ]] || tests=OFF
[[ -n $build_command ]] || mapfile -t targets < <(targets_of "$head_commit" "$tests")
build head "$head_commit" "-DTOKLINE_BUILD_TESTS=$tests" ||
  stop 1 "The change does not build" "$work/head.log"
[[ -n $build_command ]] || mapfile -t targets < <(targets_of "$base_commit" OFF)
build base "$base_commit" -DTOKLINE_BUILD_TESTS=OFF ||
  stop 3 "The base does not build: there is nothing to compare with" "$work/base.log"

[[ $device == cpu ]] || take_gpu
if [[ $no_tests == no ]]; then
  say "running the tests of the change"
  labels=(-L '^gpu$')
  [[ $device == cuda ]] || labels=(-LE '^gpu$')
  if ((${#targets[@]})) && [[ ,$programs, != *,decoder,* ]]; then labels+=(-R "^(${programs//,/|})(_cuda)?_test\$"); fi
  ctest --test-dir "$(build_of head)" "${labels[@]}" --output-on-failure --no-tests=error \
    --parallel "${jobs:=$(default_jobs)}" </dev/null 2>&1 | tee "$work/tests.log" >&2 ||
    stop 1 "A test of the change fails" "$work/tests.log"
fi

# make_real_model DIR: in another place first, so that a folder that is there is whole.
make_real_model() {
  rm -rf "$1.partial" && scripts/maintain/parity make-model --shape qwen3-0.6b --out "$1.partial" && mv "$1.partial" "$1"
}
but=""
if [[ -z $model ]]; then
  model=models/qwen3-lookup
  if [[ $device == cuda && (-z $programs || ,$programs, == *,decoder,*) ]]; then
    real=${TOKLINE_MODELS:-build/models}/qwen3-0.6b
    if [[ -f $real/config.json ]] || make_real_model "$real" 2>&1 | tee "$work/model.log" >&2; then
      model=$real
    else
      but=", but the decoder ran a model of 1.2 MB, since $real is not there and cannot be made: $(tail -n 1 "$work/model.log")"
    fi
  fi
fi
say "measuring both sides, interleaved"
arguments=(--ab "$(build_of base)/bin" "$(build_of head)/bin" --device "$device" --keep "$out"
  --markdown "$work/gate.md")
[[ -z $rounds ]] || arguments+=(--rounds "$rounds")
[[ -z $programs ]] || arguments+=(--programs "$programs")
[[ $model == models/qwen3-lookup && ! -f $model/config.json ]] || arguments+=(--model "$model")
arguments+=(-- "${passed_through[@]}")
code=0
rm -f "$work"/gate.{md,log}
if [[ -t 2 ]]; then  # progress is shown only on a terminal
  scripts/records gate "${arguments[@]}" || code=$?
else
  scripts/records gate "${arguments[@]}" 2>"$work/gate.log" || code=$?
  cat "$work/gate.log" >&2
fi
case $code in
  0) words="Same or faster" ;;
  1) words="Slower, or worse in another way" ;;
  3) words="Not comparable" ;;
  77) words="Nothing to measure" ;;
  *) exit "$code" ;;
esac
words+=$but
[[ -s $work/gate.md ]] || stop "$code" "$words" "$work/gate.log"
{
  verdict "$words"
  cat "$work/gate.md"
} >"$out/verdict.md"
# The report shows the verdict and does not change it.
scripts/records report "$out/b.jsonl" --baseline "$out/a.jsonl" -o "$out/report.html" \
  --title "$(git log -1 --format='%h %s' "$head_commit")" >&2 || die 2 "scripts/records report failed"
say "${words,}: $out/verdict.md and report.html"
exit "$code"
