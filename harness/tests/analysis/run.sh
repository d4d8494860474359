#!/usr/bin/env bash
# run.sh <name>_test: one Python test file of this folder, in the environment of the analysis scripts.
# Exits 77 where there is none: scripts/test makes it, names it in TOKLINE_PYTHON, and a test installs nothing. What
# is named must work.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/setup/analysis.sh"
if ! find_analysis_python no; then
  [[ -z ${TOKLINE_PYTHON:-} ]] || die 1 "$why_not"
  echo "skipped: no Python with NumPy, SciPy, Matplotlib and Jinja2: $why_not"
  exit 77
fi
export PYTHONPATH=$root/scripts/python PYTHONDONTWRITEBYTECODE=1
unset PYTHONUNBUFFERED  # hides what a full standard error does at the end of a process
exec "$analysis_python" "$root/harness/tests/analysis/runner.py" "$@"
