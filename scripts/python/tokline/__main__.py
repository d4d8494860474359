"""python -m tokline COMMAND ARGUMENT...: what scripts/records COMMAND and some of scripts/maintain run. A command's
main() takes the arguments and returns its exit code."""

import importlib
import sys

from tokline.command import ended

PROGRAMS = {"believe": "scripts/maintain/believe", "cost_model": "scripts/maintain/fit_cost_models"}
MODULES = {"report": "report.command"}  # the others are named like their commands


def run(command, arguments):
    """Runs a command and returns its exit code."""
    program = PROGRAMS.get(command, f"scripts/records {command}")
    # The import can be interrupted too.
    return ended(program, lambda: importlib.import_module(f"tokline.{MODULES.get(command, command)}").main(arguments))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
