"""How every command ends where its files cannot be used, where it fails, and where it is interrupted."""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from command_case import CommandTest, run_here
from synthetic import DecoderCase, Effect

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = ("gate", "compare", "changes", "blame", "ablate", "report", "export", "table", "history", "believe")


def program_of(command):
    return ("scripts/maintain/" if command in ("believe", "floors") else "scripts/records ") + command


def command_line(command):
    """floors is a program of its own: standard library only."""
    return [sys.executable, ROOT / program_of(command)] if command == "floors" else [
        sys.executable, "-m", "tokline", command]


def redirected(redirection, line):
    return subprocess.run(["bash", "-c", f'"$@" {redirection}', "-", *line], capture_output=True, text=True)


class CommandsTest(CommandTest):
    def test_a_result_that_cannot_be_written_is_a_line_and_never_a_verdict(self):
        a, b = self.pair(rounds=3)
        decoder = self.write("decoder.jsonl", self.machine.decoder_run())
        header = self.machine.header("tokline ablate")
        line = self.machine.ablation(header, DecoderCase(), "qkv", "plain ops", 5.0)
        ablation = self.write("ablation.jsonl", [header, line])
        for code, *words in ((2, "gate", "--baseline", a, "--candidate", b), (2, "compare", a, b),
                             (1, "blame", decoder, decoder), (1, "ablate", "--records", ablation),
                             (1, "export", a, "--format", "csv"), (1, "table", a), (2, "floors", self.folder)):
            line = [*command_line(words[0]), *words[1:]]
            for redirection, why in (">/dev/full", "No space left on device"), (">&-", "it is closed"):
                with self.subTest(words[0] + redirection):
                    done = redirected(redirection, line)
                    self.assertEqual(done.returncode, code, done.stderr)
                    said = f"{program_of(words[0])}: cannot write to standard output: {why}"
                    self.assertEqual(done.stderr.splitlines()[-1], said)
                    self.assertNotIn("Traceback", done.stderr)

    def test_without_standard_error_nothing_is_said_and_the_verdict_stands(self):
        a, b = self.pair([Effect(10, kernel="linear")], rounds=3, killed=True)
        for redirection in ("2>&-", "2>/dev/full"):
            line = [*command_line("gate"), "--baseline", a, "--candidate", b, "--format", "json"]
            done = redirected(redirection, line)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertTrue(done.stdout.startswith("{"), done.stdout)
            line[-3:] = [self.folder / "none.jsonl"]
            done = redirected(redirection, line)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(redirected(redirection, [*command_line("gate"), "--no-such-option"]).returncode, 2)

    def test_json_that_is_nested_too_deeply_is_a_line(self):
        a, _ = self.pair()
        deep = self.folder / "deep" / "deep.jsonl"
        deep.parent.mkdir()
        deep.write_text("[" * 100000)
        for code, command, *arguments in ((2, "gate", "--baseline", a, "--candidate", deep),
                                          (2, "compare", a, deep.parent), (1, "blame", a, deep),
                                          (1, "ablate", "--records", deep), (1, "export", deep, "--format", "csv"),
                                          (1, "report", deep, "-o", self.folder / "r.html"), (1, "table", deep),
                                          (2, "floors", deep)):
            with self.subTest(command):
                done = subprocess.run([*command_line(command), *arguments], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
                self.assertRegex(done.stderr, rf"^{program_of(command)}: .*deep.jsonl:1: not JSON: .*recursion.*\n$")

    def test_an_error_of_a_command_is_no_verdict(self):
        for command in COMMANDS:
            with mock.patch("importlib.import_module", side_effect=ZeroDivisionError):
                code, out, err = run_here(command)
            self.assertEqual((code, out), (2 if command in ("gate", "compare") else 1, ""))
            self.assertIn("ZeroDivisionError", err)
            self.assertRegex(err.splitlines()[-1], f"^{program_of(command)}: this is an error of the command")

    def refuses_one_file(self, names, command, *arguments):
        before = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        done = self.run_command(command, *arguments, expect=2)
        said = " and ".join(re.escape(name) + r" \S+" for name in names)
        self.assertRegex(done.stderr, rf"^{program_of(command)}: {said} are one file; .*\n$")
        self.assertEqual(done.stdout, "")
        self.assertEqual({path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}, before)

    def test_a_result_never_takes_the_place_of_what_it_is_made_of(self):
        a, b = map(Path, self.pair())
        link = self.folder / "link"
        link.symlink_to(b)
        hard = self.folder / "hard"
        os.link(b, hard)
        noise = self.write("noise.jsonl", self.machine.run("bench_x", self.cases))
        html, here = self.folder / "r.html", self.folder / "." / ".." / self.folder.name / "b.jsonl"
        cheats = self.folder / "tests" / "cheats_test.json"
        cheats.parent.mkdir()
        cheats.write_text("{}")
        gate = ("gate", "--baseline", a, "--candidate", b)
        for names, *words in (
            (("-o", "RESULTS"), "report", b, "-o", b), (("-o", "RESULTS"), "report", b, "-o", here),
            (("-o", "RESULTS"), "report", b, "-o", link), (("-o", "RESULTS"), "report", b, "-o", hard),
            (("-o", "RESULTS"), "report", self.folder, "-o", b),
            (("--markdown", "RESULTS"), "report", b, "-o", html, "--markdown", b),
            (("--screenshot", "--baseline"), "report", b, "--baseline", a, "-o", html, "--screenshot", a),
            (("-o", "RECORDS"), "export", b, "--format", "csv", "-o", b),
            (("--json", "--candidate"), *gate, "--json", b), (("--markdown", "--baseline"), *gate, "--markdown", a),
            (("--json", "--noise"), *gate, "--noise", noise, "--json", noise),
            (("--out", "--aa"), "gate", "--aa", b, "--out", b),
            (("--json", "--keep's"), "gate", "--ab", a, b, "--keep", "k", "--json", "k/b.jsonl"),
            (("--json", "DIR"), "believe", "report", self.folder, "--json", cheats),
            (("-o", "DIR"), "believe", "report", self.folder, "-o", a)):
            with self.subTest(list(map(str, words))):
                self.refuses_one_file(names, *words)

    def test_a_result_never_takes_the_place_of_other_records(self):
        a, b = self.pair()
        others = Path(self.write("others.jsonl", self.machine.run("bench_x", self.cases)))
        before = others.read_bytes()
        for name, *words in (
            ("-o", "report", a, "-o", others),
            ("--markdown", "report", a, "-o", self.folder / "r.html", "--markdown", others),
            ("-o", "export", a, "--format", "csv", "-o", others),
            ("--json", "gate", "--baseline", a, "--candidate", b, "--json", others)):
            with self.subTest(words[0]):
                done = self.run_command(*words, expect=2)
                self.assertRegex(done.stderr, rf"{name} \S+others.jsonl holds records of measurements, which a result "
                                 "would replace; name another file, or delete this one\n$")
                self.assertEqual(others.read_bytes(), before)

    def test_two_results_never_share_a_file(self):
        a, b = self.pair()
        r, same = self.folder / "r", f"{self.folder}/./r"
        for names, *words in (
            (("-o", "--markdown"), "report", a, "-o", r, "--markdown", same),
            (("--markdown", "--json"), "gate", "--baseline", a, "--candidate", b, "--json", r, "--markdown", same),
            (("-o", "--json"), "believe", "report", self.folder, "-o", r, "--json", same)):
            with self.subTest(words[0]):
                self.refuses_one_file(names, *words)
        gate = ("gate", "--baseline", a, "--candidate", b)
        self.run_command(*gate, "--json", os.devnull, "--markdown", os.devnull, expect=0)

    def test_nothing_is_written_where_one_of_the_results_cannot_be(self):
        a, b = self.pair()
        good, bad = self.folder / "r", self.folder / "none" / "x"
        for code, *words in ((1, "report", a, "-o", good, "--markdown", bad),
                             (2, "gate", "--baseline", a, "--candidate", b, "--json", good, "--markdown", bad),
                             (1, "believe", "report", self.folder, "-o", good, "--json", bad)):
            with self.subTest(words[0]):
                done = self.run_command(*words, expect=code)
                said = f"{program_of(words[0])}: cannot write {bad}: No such file or directory\n"
                self.assertEqual((done.stdout, done.stderr), ("", said))
                self.assertFalse(good.exists())
                self.assertFalse(bad.parent.exists())

    def test_a_result_is_written_through_a_link(self):
        a, _ = self.pair()
        (self.folder / "link").symlink_to("target")
        self.run_command("export", a, "--format", "csv", "-o", self.folder / "link", expect=0)
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertTrue((self.folder / "target").read_text().startswith("time_utc,"))

    def test_ctrl_c_while_modules_are_imported_is_a_line(self):
        for command in COMMANDS:
            with mock.patch("importlib.import_module", side_effect=KeyboardInterrupt):
                self.assertEqual(run_here(command), (130, "", f"{program_of(command)}: interrupted\n"))

    def test_every_command_says_what_an_interrupt_exits_with(self):
        for command in COMMANDS:
            for before_help in ((), ("collect",), ("report",)) if command == "believe" else ((),):
                code, out, _ = run_here(command, *before_help, "--help")
                self.assertEqual(code, 0)
                self.assertRegex(out.replace("\n", " "), r"(?i)exit codes.*: .*130 +interrupted")
        done = subprocess.run([*command_line("floors"), "--help"], capture_output=True, text=True)
        self.assertRegex(done.stdout.replace("\n", " "), r"(?i)exit codes?: .*130 +interrupted")


if __name__ == "__main__":
    unittest.main()
