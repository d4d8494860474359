"""How every command ends: with a line and an exit code, never with a traceback that looks like a verdict."""

import traceback

from tokline import terminal
from tokline.files import CannotWrite, SameFile

FAILED, MISUSE, INTERRUPTED = 1, 2, 130
# Their 1 is a verdict: what fails in them exits with 2.
OF_VERDICTS = ("gate", "compare", "floors")


def ended(command, main):
    """The exit code of main(), a command's: also where Ctrl-C, files that cannot be written, or an error of the
    command itself end it."""
    failed = MISUSE if command in OF_VERDICTS else FAILED
    try:
        return main()
    except KeyboardInterrupt:
        terminal.say(command, "interrupted")
        return INTERRUPTED
    except SameFile as error:
        terminal.say(command, error)
        return MISUSE
    except CannotWrite as error:
        terminal.say(command, error)
        return failed
    except Exception as error:
        terminal.say(command, "".join(traceback.format_exception(error)).rstrip())
        terminal.say(command, "an error of this command, which says nothing of its arguments; please report it")
        return failed
    finally:
        terminal.settle_stderr()
