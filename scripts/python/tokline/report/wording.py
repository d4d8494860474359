"""How figures and names are written in the page, in its plots and in Markdown."""

import re
import shlex

from tokline.terminal import figure


def compact(value):
    """A number as the ticks of an axis show it: 0.01, 1, 200, 5k, 20k, 1M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def percent(value):
    """A share of a limit, with no more digits than are certain."""
    if value is None:
        return ""
    return f"{value:.1f} %" if value < 10 else f"{value:.0f} %"


def microseconds(value):
    """A time, in the unit that reads best."""
    if value is None:
        return ""
    return f"{figure(value / 1000)} ms" if value >= 10_000 else f"{figure(value)} µs"


def ratio(value):
    return "" if value is None else f"{value:.2f}×"


def change(ratio):
    """1.034 is "+3.4 %", 0.9 "−10.0 %"."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−")


def listed(words, last="and"):
    """a, b and c"""
    words = list(words)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def command_words(command_line):
    """A run's command line as one can paste it: a program of a build folder by its path in the tree, and a file by the
    name that the script which ran the command gave it at the end."""
    program, *words = (re.sub(r"/\.running\.[^/]+/", "/", str(word)) for word in command_line or [""])
    return shlex.join([re.sub("^/.*/(build/)", r"\1", program), *words]) if program else ""


def commit_label(fingerprint):
    """abc1234, with a + if the tree had changes."""
    commit = str(fingerprint.get("commit") or "unknown")
    dirty = str(fingerprint.get("dirty")).lower() == "true"
    return commit[:7] + ("+" if dirty else "")
