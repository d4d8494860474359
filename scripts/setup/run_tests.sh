# shellcheck shell=bash disable=SC2034,SC2154  # variables are shared between these files
# Sourced: runs the tests of a build.

# run_tests BUILD_DIR [ctest arguments]: sets passed; skipped and without_device, how many tests were skipped and how
# many of these lacked a GPU; and retried, the tests that passed the second time. If retry is yes, failed tests run
# once more, each alone. A ctest that is killed has failed, whatever it or an earlier one left, and so has one that was
# told to stop at a failure, since the tests after it have not run.
run_tests() {
  local build_dir=$1 log=$1/Testing/Temporary/LastTest.log failed_log=$1/Testing/Temporary/LastTestsFailed.log failed
  shift
  passed=yes retried=""
  rm -f "$failed_log"  # of an earlier run, which must not be taken for this one's
  ctest --test-dir "$build_dir" --output-on-failure --no-tests=error "$@" </dev/null || passed=no
  # The tests themselves say what did not run: GoogleTest prints one line per skipped test, with a reason.
  skipped=$(grep -c '^\[  SKIPPED \] .*ms)$' "$log" || true)
  without_device=$(grep -c '^no CUDA device' "$log" || true)
  failed=$(cut -d: -f2 "$failed_log" 2>/dev/null | paste -sd' ') || true
  [[ $passed == no && $retry == yes && -n $failed && " $* " != *" --stop-on-failure "* ]] || return 0
  say "running once more, each alone, what failed: $failed"
  local again=$build_dir/Testing/Temporary/Retried.log left=""
  if ctest --test-dir "$build_dir" --output-on-failure --rerun-failed </dev/null | tee "$again"; then
    passed=yes
  else
    left=$(cut -d: -f2 "$failed_log")
  fi
  # What fails and then skips has not passed: it may have lost its GPU.
  left+=$'\n'$(sed -nE 's/.*Test +#[0-9]+: ([^ ]+) .*Skipped.*/\1/p' "$again")
  [[ $left == $'\n' ]] || passed=no
  retried=$(tr ' ' '\n' <<<"$failed" | grep -vxFf <(echo "$left") | paste -sd' ') || true
}

# Says which tests passed only the second time: to the user, in the summary of a workflow, and into
# retried_file.
name_retried() {
  [[ -n $retried ]] || return 0
  echo "FAILED AT FIRST, passed alone: $retried"
  [[ -z ${GITHUB_STEP_SUMMARY:-} ]] || echo "Failed at first, passed alone: $retried" >>"$GITHUB_STEP_SUMMARY"
  [[ -z $retried_file ]] || tr ' ' '\n' <<<"$retried" >"$retried_file"
}
