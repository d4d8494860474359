"""scripts/records history over a scratch repository and a remote beside it."""

import shutil
import tempfile
import unittest
from pathlib import Path

import synthetic
from scratch_repository import ScratchRepository, git


class HistoryTest(ScratchRepository):
    def setUp(self):
        self.remote = Path(tempfile.mkdtemp(dir=self.folder))
        git(self.remote, "init", "-q", "--bare")
        git(self.tree, "remote", "add", self.remote.name, str(self.remote))

    def history(self, *arguments):
        return self.script("records", "history", "--remote", self.remote.name, "--out", self.folder / "history",
                           *arguments)

    def record(self, name, seed=1, **run):
        machine = synthetic.Machine(seed=seed)
        (self.folder / "records").mkdir(exist_ok=True)
        return synthetic.write(self.folder / "records" / name,
                               machine.run("bench_linear", synthetic.kernel_cases(3), **run))

    def files(self):
        return sorted(path.name for path in (self.folder / "history").glob("*.jsonl"))

    def test_each_addition_keeps_what_is_there(self):
        self.assertEqual(self.history()[0], 0)
        self.assertEqual(self.files(), [])
        for name in ("a.jsonl", "b.jsonl", "b.jsonl"):
            code, output = self.history(self.record(name))
            self.assertEqual(code, 0, output)
        self.assertEqual(self.files(), ["a.jsonl", "b.jsonl"])
        self.assertEqual(git(self.remote, "rev-list", "--count", "history"), "2")  # the third had nothing new

    def test_two_records_of_one_name_are_refused(self):
        first = self.record("a.jsonl")
        other = tempfile.mkdtemp(dir=self.folder)
        code, output = self.history(first, shutil.copy(first, other))
        self.assertEqual(code, 2)
        self.assertIn("two records have the same name", output)

    def test_tests_that_passed_at_their_second_try_are_counted_over_nights(self):
        names = self.folder / "retried.txt"
        for number, text in enumerate(("a_test\nb_test\n", "", "a_test\n")):
            names.write_text(text)
            code, output = self.history(self.record(f"{number}.jsonl", seed=number), "--retried", names)
            self.assertEqual(code, 0, output)
        self.assertIn("Tests that passed only at their second try, of 3 nights: a_test 2, b_test 1.", output)
        self.assertIn("3 files of history", output)
        names.write_text("<script>\n")
        code, output = self.history(self.record("3.jsonl"), "--retried", names)
        self.assertEqual(code, 2)
        self.assertIn("'<script>' is no name of a test", output)
        self.assertEqual(self.history("--retried", names)[0], 2)

    def test_a_file_is_never_replaced(self):
        self.history(self.record("a.jsonl"))
        code, output = self.history(self.record("a.jsonl", seed=2))
        self.assertEqual(code, 2)
        self.assertIn("a.jsonl with other content; it is not replaced", output)
        self.assertEqual(git(self.remote, "rev-list", "--count", "history"), "1")

    def test_what_another_one_pushed_meanwhile_is_kept(self):
        self.history(self.record("a.jsonl"))
        # The first push finds that the branch has moved: a hook of the remote moves it once.
        other = self.folder / "other"
        git(self.folder, "clone", "-q", "-b", "history", str(self.remote), str(other))
        self.record("b.jsonl", seed=2)
        shutil.copy(self.folder / "records/b.jsonl", other)
        git(other, "add", ".")
        git(other, "commit", "-q", "-m", "b")
        git(other, "push", "-q", "origin", "HEAD:moved")
        hook = self.remote / "hooks/pre-receive"
        hook.write_text("#!/bin/sh\nunset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES\n"
                        "[ -e once ] || { touch once; git update-ref refs/heads/history moved; }\n")
        hook.chmod(0o755)
        code, output = self.history(self.record("c.jsonl", seed=3))
        self.assertEqual(code, 0, output)
        self.assertEqual(self.files(), ["a.jsonl", "b.jsonl", "c.jsonl"])

    def test_a_run_that_did_not_end_is_not_kept(self):
        code, output = self.history(self.record("killed.jsonl", killed=True))
        self.assertEqual(code, 2)
        self.assertIn("did not end; only whole runs are kept", output)

    def test_a_remote_that_cannot_be_read_is_a_failure(self):
        git(self.tree, "remote", "set-url", self.remote.name, str(self.folder / "nowhere"))
        code, output = self.history(self.record("a.jsonl"))
        self.assertEqual(code, 1)
        self.assertIn("cannot be read", output)

    def test_a_folder_with_other_files_is_not_emptied(self):
        code, output = self.script("records", "history", "--remote", self.remote.name, "--out", self.tree)
        self.assertEqual(code, 2)
        self.assertTrue((self.tree / "scripts").exists(), output)


if __name__ == "__main__":
    unittest.main()
