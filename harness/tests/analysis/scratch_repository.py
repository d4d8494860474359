"""A git repository in a folder of its own, with a copy of the scripts and of what they read: what a script does to it, it does to no other."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def git(folder, *arguments):
    """What git prints; raises where it fails."""
    return subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=folder, check=True,
                          capture_output=True, text=True).stdout.strip()


class ScratchRepository(unittest.TestCase):
    """Tests of scripts that work on a repository: `tree`, in `folder`, is one."""
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="tokline-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.tree = cls.folder / "tree"
        shutil.copytree(ROOT / "scripts", cls.tree / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "CMakeLists.txt", cls.tree)
        schema = Path("harness/record/record.schema.json")
        (cls.tree / schema).parent.mkdir(parents=True)
        shutil.copy(ROOT / schema, cls.tree / schema)
        (cls.tree / ".gitignore").write_text("build/\n")
        git(cls.tree, "init", "-q", "-b", "main")
        git(cls.tree, "add", ".")
        git(cls.tree, "commit", "-q", "-m", "scripts")

    def script(self, name, *arguments):
        """(exit code, what it wrote to both streams)"""
        env = os.environ | {"TOKLINE_PYTHON": sys.executable, "NO_COLOR": "1"}
        done = subprocess.run([self.tree / "scripts" / name, *map(str, arguments)], cwd=self.tree, env=env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        return done.returncode, done.stdout
