"""Commands of scripts/python/tokline as they are run, on records of a simulated machine."""

import contextlib
import io
import os
import re
import subprocess
import sys

import synthetic
from folder_case import FolderTest
from tokline.__main__ import run


def run_here(command, *arguments):
    """(exit code, stdout, stderr) of a command that runs in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(command, [str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
    return code, out.getvalue(), err.getvalue()


def unwrapped(markdown):
    """Markdown with each paragraph and item on one line."""
    return re.sub(r"(?<=[^\n])\n *(?![-|#<]|```|\d+\.|\s|$)", " ", markdown)


def run_unwrapped(command, *arguments):
    """run_here() of a command that prints Markdown."""
    code, out, err = run_here(command, *arguments)
    return code, unwrapped(out), err


class CommandTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.machine = synthetic.Machine(seed=1)
        self.cases = synthetic.kernel_cases(30)

    def write(self, name, lines):
        return synthetic.write(self.folder / name, lines)

    def pair(self, effects=(), rounds=3, **side_b):
        """Two files of records; B's runs with the effects."""
        a, b = [], []
        for _ in range(rounds):
            a += self.machine.run("bench_x", self.cases)
            b += self.machine.run("bench_x", self.cases, effects=effects, **side_b)
        return self.write("a.jsonl", a), self.write("b.jsonl", b)

    def run_command(self, command, *arguments, expect, **environment):
        """What the command said and its exit code; in a process of its own where it needs an environment."""
        if environment:
            done = subprocess.run([sys.executable, "-m", "tokline", command, *map(str, arguments)], text=True,
                                  capture_output=True, env=os.environ | environment, stdin=subprocess.DEVNULL)
        else:
            done = subprocess.CompletedProcess(command, *run_here(command, *arguments))
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertNotIn("\033", done.stdout + done.stderr)
        return done
