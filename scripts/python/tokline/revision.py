"""Which commit a tree is at, or a program was built from. Standard library only."""

import re
import subprocess


def of_tree(root):
    """(commit, whether the tree has changes); (None, None) if git cannot say. Changes in results/ do not count: what is
    measured is written there."""
    def git(*arguments):
        run = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, timeout=10, check=True)
        return run.stdout.strip()
    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.SubprocessError):
        return None, None


def of_version(text):
    """(commit, whether with changes) of a program that printed `text` for --version; None if it does not say."""
    found = re.search(r"\(commit ([0-9a-z]+)( with changes)?,", text)
    return found and (found[1], bool(found[2]))
