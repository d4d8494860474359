"""What all commands have in common: their parser, and how they end: with a line and an exit code, and never so that
a traceback looks like a verdict. Standard library only."""

import argparse
import codecs
import math
import re
import signal
import sys
import traceback

from tokline import terminal
from tokline.stop import Stop

FAILED, MISUSE, INTERRUPTED = 1, 2, 130
MOST_TO_DO = 99_999
_ASCII = {"µ": "u", "×": "x", "→": "->", "±": "+-", "≥": ">=", "≤": "<=", "█": "#", "–": "-", "²": "^2"}
# Their exit code 1 is a verdict: a failure in them exits with 2.
OF_VERDICTS = ("scripts/records gate", "scripts/records compare", "scripts/maintain/floors")


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line, without the usage."""
        self.exit(MISUSE, terminal.printable(f"{self.prog}: error: {message}; see --help") + "\n")

    def _print_message(self, message, file=None):
        """Help that cannot be written is a failure."""
        if file is sys.stdout:
            terminal.write_out(message)
        else:
            super()._print_message(message, file)


def parser(description, epilog, **options):
    """An argparse parser that keeps the lines of its texts."""
    return _Parser(prog=terminal.program, description=description, epilog=epilog,
                   formatter_class=argparse.RawDescriptionHelpFormatter, **options)


def positive(text):
    """The type of an argument that is a number of things to do."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_TO_DO:
        raise argparse.ArgumentTypeError(f"is '{text}'; it must be a whole number from 1 to {MOST_TO_DO}")
    return int(text)


def positive_number(text):
    """The type of an argument that is a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"is '{text}'; it must be a number above 0")
    return number


def regular_expression(text):
    """The type of an argument that is a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}' is no regular expression: {error}") from None


def split_arguments(arguments):
    """(arguments of the command, arguments after --, which are for the program that it runs)"""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1:]


def _in_ascii(error):
    """What stands for characters that a stream cannot encode."""
    return "".join(_ASCII.get(char, "?") for char in error.object[error.start:error.end]), error.end


codecs.register_error("tokline_ascii", _in_ascii)


def ended(program, main):
    """The exit code of main(), also if Ctrl-C, SIGTERM, SIGHUP, a Stop, or an error of the command itself ends it."""
    terminal.program = program
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="tokline_ascii")
    failed = MISUSE if program in OF_VERDICTS else FAILED
    try:
        return main()
    except KeyboardInterrupt:
        terminal.say("interrupted")
        return INTERRUPTED
    except Stop as stop:
        terminal.say(stop)
        return stop.exit_code or failed
    except Exception as error:
        terminal.say("".join(traceback.format_exception(error)).rstrip())
        terminal.say("this is an error of the command and not of its arguments; please report it")
        return failed
    finally:
        terminal.settle_stderr()
