"""Writes files so that they are there whole, or as they were before."""

import errno
import itertools
import json
import os
import tempfile

from tokline.stop import Stop


class CannotWrite(Stop):
    """A result that could not be written; the message says which and why."""


class SameFile(Stop):
    """A result that would overwrite one of its inputs, another result or other records, or has no file; the message
    names them."""
    exit_code = 2


def write_whole(path, content):
    """Writes text or bytes: to a temporary file beside `path`, which is then renamed. A pipe or a device is written
    directly, since nothing can replace it. A link to a file stays a link."""
    name, path = path, os.fspath(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    partial = None
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                file.write(data)
            return
        path = os.path.realpath(path)
        handle, partial = tempfile.mkstemp(
            prefix=os.path.basename(path) + ".", suffix=".partial", dir=os.path.dirname(path) or ".")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(partial, 0o666 & ~mask)
        os.replace(partial, path)
        partial = None
    except OSError as error:
        raise CannotWrite(f"cannot write {name}: {error.strerror}") from None
    finally:
        if partial and os.path.exists(partial):
            os.unlink(partial)


def require_writable(path):
    """Checks before hours of work whether write_whole() could write there. Leaves nothing behind."""
    try:
        if os.path.isdir(path):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(path) and not os.path.isfile(path):
            # It is not opened: the reader of a pipe would take that for everything.
            if not os.access(path, os.W_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            return
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
            pass
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}") from None


def check_outputs(outputs, inputs=(), records=()):
    """Checks before anything is read or written whether every result can be written, into a file of its own that
    holds no records, which could not be made again.

    Both are (name, path) pairs with the name of the option. A path may be None, and an input may be a folder, whose
    *.jsonl are read. `records` names the options whose results are records themselves. Raises SameFile and
    CannotWrite.
    """
    written = [(name, path) for name, path in outputs if path is not None]
    read = [(name, file) for name, path in inputs if path is not None for file in _files_of(path)]
    for (name, path), (other, its_path) in [*itertools.combinations(written, 2), *itertools.product(written, read)]:
        if _same_file(path, its_path):
            raise SameFile(f"{name} {path} and {other} {its_path} are one file; a result needs a file of its own")
    for name, path in written:
        if path == "-":
            raise SameFile(f"{name} is '-': it names a file; ./- is one of that name, and /dev/stdout the output")
        if name not in records and _holds_records(path):
            raise SameFile(f"{name} {path} holds records of measurements, which a result would replace; "
                           "name another file, or delete this one")
        require_writable(path)


def _holds_records(path):
    """Whether the first line of a file is that of a record (docs/measuring.md)."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "schema" in first and "run_id" in first


def jsonl_below(folder):
    """Every *.jsonl in the folder and below it, sorted."""
    return sorted(
        os.path.join(where, name) for where, _, names in os.walk(folder) for name in names if name.endswith(".jsonl"))


def _files_of(path):
    return jsonl_below(path) if os.path.isdir(path) else [path]


def _same_file(a, b):
    """Devices and pipes are never the same file: what is written there replaces nothing."""
    if os.path.exists(a) and os.path.exists(b):
        return os.path.isfile(a) and os.path.samefile(a, b)
    return os.path.realpath(a) == os.path.realpath(b)
