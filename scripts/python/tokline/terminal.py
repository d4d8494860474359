"""What people see: colour, tables in text and Markdown, figures, progress, failure."""

import contextlib
import math
import os
import re
import shutil
import sys
import textwrap
import unicodedata

from tokline.files import CannotWrite

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # but not the newline
_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


def printable(text):
    """The text with its control characters spelled out."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def colour_wanted(stream=None):
    """Whether the stream is a terminal that wants colour: NO_COLOR and TERM=dumb are respected."""
    stream = stream or sys.stdout
    is_terminal = stream is not None and stream.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text, colour, wanted):
    """The text in `colour` (a name, or None) if colour is wanted."""
    return f"\033[{_CODES[colour]}m{text}\033[0m" if wanted and colour else text


def width(text):
    """The columns that a text takes on a terminal."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def figure(value):
    """Three or four significant digits, never an exponent; "" for None."""
    if value is None:
        return ""
    digits = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def percent(ratio, digits=1):
    """A ratio as the change that it is: 1.034 is "+3.4 %"."""
    return f"{100 * (ratio - 1):+.{digits}f} %"


def count(number, noun, plural=None):
    """ "1 row", "2 rows", "1,000 rows"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def text_table(header, lines, right=(), colours=None, wanted=False):
    """A table as lines of text. `right` are the columns that are aligned to the right; `colours` has a
    list of colours (or None) for each line, one per cell."""
    widths = [max((width(line[i]) for line in [header, *lines]), default=0) for i in range(len(header))]

    def render(cells, line_colours):
        parts = []
        for i, cell in enumerate(cells):
            pad = " " * (widths[i] - width(cell))
            painted = paint(cell, line_colours[i] if line_colours else None, wanted)
            parts.append(pad + painted if i in right else painted + pad)
        return "  ".join(parts).rstrip()

    yield render(header, ["bold"] * len(header))
    for number, line in enumerate(lines):
        yield render(line, colours[number] if colours else None)


def markdown_table(header, lines, right=()):
    """The same table in Markdown."""
    def render(cells):
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    yield render(header)
    yield "|" + "|".join("---:" if i in right else "---" for i in range(len(header))) + "|"
    for line in lines:
        yield render(line)


def wrapped(markdown, columns=100):
    """Markdown whose paragraphs and items are filled anew to at most so many columns. Tables, headings, fences and
    what stands in them, comments and pictures stay as they are."""
    done, open_lines, fenced = [], [], False

    def close():
        if open_lines:
            marker = re.match(r" *(- |\d+\. )?", open_lines[0])[0]
            done.append(textwrap.fill(" ".join([open_lines[0], *map(str.strip, open_lines[1:])]), columns,
                                      subsequent_indent=" " * len(marker), break_long_words=False,
                                      break_on_hyphens=False))
            open_lines.clear()

    for line in markdown.split("\n"):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if fence or fenced or not line.strip() or line.startswith(("|", "#", "<", "[!", "    ")):
            close()
            done.append(line)
            continue
        if re.match(r" *(- |\d+\. )", line):
            close()
        open_lines.append(line)
    close()
    return "\n".join(done)


class Progress:
    """One line on standard error that overwrites itself; nothing if that is not a terminal."""
    def __init__(self, stream=None):
        self._stream = stream or sys.stderr
        self._shown = self._stream is not None and self._stream.isatty()

    def show(self, text):
        if self._shown:
            columns = shutil.get_terminal_size().columns
            self._stream.write("\r\033[K" + text[: max(columns - 1, 20)])
            self._stream.flush()

    def clear(self):
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()


# The name of the running command in the lines that it says; tokline.command.ended() sets it.
program = "scripts/records"


def say(text):
    """Writes a line to standard error: what the command has to say besides its result. If nobody can read it, nothing
    happens: print() would put it into the result, or fail."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"{program}: {printable(str(text))}", file=sys.stderr, flush=True)


def drop(stream):
    """Gives up what is left in the buffer of a stream that cannot be written: the interpreter would try again at its
    end, and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def settle_stderr():
    """Is called at the end: what could not be said must not change the exit code."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def write_out(text):
    """Writes the result to standard output. A reader that stops reading is no failure; raises CannotWrite for any
    other."""
    if sys.stdout is None:
        raise CannotWrite("cannot write to standard output: it is closed")
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except OSError as error:
        drop(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise CannotWrite(f"cannot write to standard output: {error.strerror}") from None
