"""The names of the suite's kernels. Standard library only."""

import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DEFAULT_MODEL = ROOT / "models" / "qwen3-lookup"


@functools.cache
def names():
    """The names in the add_kernel() lines of the root CMakeLists.txt, in order."""
    return re.findall(r"^add_kernel\((\w+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)


def order(name):
    """The key that sorts kernels, unknown ones last."""
    return (names().index(name) if name in names() else len(names()), name)
