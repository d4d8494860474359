"""python -m tokline COMMAND ARGUMENT...: what scripts/COMMAND runs. A command's main() returns its exit code."""

import importlib
import sys

from tokline.ending import ended

MODULES = {"report": "report.command"}  # of the others: their names


def run(command, arguments):
    """The exit code."""
    # What is imported can be interrupted too.
    return ended(command, lambda: importlib.import_module(f"tokline.{MODULES.get(command, command)}").main(arguments))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
