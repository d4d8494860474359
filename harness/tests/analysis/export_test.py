"""scripts/records export: what other tools get is what was recorded, and files are there whole or as they were."""
import csv
import functools
import io
import json
import os
import resource
import signal
import subprocess
import sys
import unittest

from command_case import run_here
from folder_case import FolderTest
from synthetic import Machine, decoder_cases, kernel_cases, write

from tokline import export, records

run_main = functools.partial(run_here, "export")


class ExportTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.machine = Machine(seed=3)
        self.cases = kernel_cases(10)

    def history(self, commits=3, **more):
        """A file with a pass of two programs a commit, a day apart."""
        lines = []
        for number in range(commits):
            self.machine.commit = f"{number:040d}"
            lines += self.machine.run("bench_all", self.cases, **more)
            lines += self.machine.decoder_run(decoder_cases((1,)))
            self.machine.wait(days=1)
        return write(self.folder / "history.jsonl", lines)


class GoogleBenchmarkTest(ExportTest):
    def test_every_sample_is_a_repetition(self):
        lines = self.machine.run("bench_all", self.cases) + self.machine.decoder_run(decoder_cases((8,)))
        path = write(self.folder / "a.jsonl", lines)
        code, out, err = run_main(path, "--format", "google-benchmark")
        self.assertEqual((code, err), (0, ""))
        result = json.loads(out)
        self.assertEqual(result["context"]["executable"], "bench_all")
        self.assertNotIn("host_name", result["context"])
        by_name = {}
        for entry in result["benchmarks"]:
            self.assertEqual((entry["run_type"], entry["time_unit"]), ("iteration", "us"))
            self.assertEqual(entry["repetition_index"], len(by_name.setdefault(entry["name"], [])))
            by_name[entry["name"]].append(entry["real_time"])
        self.assertEqual(len(by_name), len(self.cases) + 1)
        kernel, decoder = lines[1], lines[-2]
        self.assertIn(kernel["samples_us"], list(by_name.values()))
        self.assertIn([1e3 * ms for ms in decoder["samples_ms"]], list(by_name.values()))

    def test_a_refused_row_has_its_reason_and_no_time(self):
        lines = self.machine.run("bench_all", self.cases, refused={self.cases[2]: "unverified"})
        code, out, _ = run_main(write(self.folder / "a.jsonl", lines), "--format", "google-benchmark")
        self.assertEqual(code, 0)
        errors = [entry for entry in json.loads(out)["benchmarks"] if entry.get("error_occurred")]
        self.assertEqual([entry["error_message"] for entry in errors], ["unverified"])
        self.assertNotIn("real_time", errors[0])

    def test_a_row_of_two_runs_must_be_chosen(self):
        path = self.history(2)
        code, out, err = run_main(path, "--format", "google-benchmark")
        self.assertEqual((code, out), (3, ""))
        self.assertRegex(err, r"^scripts/records export: '.+' is in the runs \w+ and \w+; --run chooses one\n$")
        runs = records.read(path)
        code, out, err = run_main(path, "--format", "google-benchmark", "--run", runs[2].run_id[:12])
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(json.loads(out)["context"]["commit"], runs[2].commit)
        code, _, err = run_main(path, "--format", "csv", "--run", "nothing")
        self.assertEqual(code, 3)
        self.assertIn("--run nothing matches 0 runs", err)

    def test_rows_whose_labels_are_equal_get_names_that_differ(self):
        common = {"implementation": "cuda", "dtype": "bf16", "device": "GPU", "cache": "cold", "chain": "plain",
                  "kernel": "linear"}
        keys = [records.key(common | {"shape": {"name": "x", "in": size}}) for size in (64, 128)]
        names = export.names_of(keys)
        self.assertEqual(len(set(names.values())), 2)
        self.assertIn("in 64", names[keys[0]])


class CsvTest(ExportTest):
    def test_a_line_a_row_with_its_figures(self):
        lines = self.machine.run("bench_all", self.cases, refused={self.cases[0]: "a, \"quoted\" reason"},
                                 disturbed={self.cases[1]: "throttled: power cap"})
        lines += self.machine.decoder_run(decoder_cases((8,)))
        code, out, _ = run_main(write(self.folder / "a.jsonl", lines), "--format", "csv")
        self.assertEqual(code, 0)
        table = list(csv.DictReader(io.StringIO(out)))
        self.assertEqual(len(table), len(self.cases) + 1)
        self.assertEqual((table[0]["status"], table[0]["reason"]), ("refused", "a, \"quoted\" reason"))
        self.assertEqual((table[0]["median_us"], table[0]["samples_us"]), ("", ""))
        self.assertEqual(table[1]["disturbed"], "throttled: power cap")
        self.assertEqual(float(table[1]["median_us"]), lines[2]["median_us"])
        self.assertEqual(float(table[1]["ci95_low_us"]), lines[2]["ci95_us"][0])
        self.assertEqual(len(table[1]["samples_us"].split()), len(lines[2]["samples_us"]))
        decoder = lines[-2]
        self.assertEqual(table[-1]["batch"], "8")
        self.assertEqual(float(table[-1]["median_us"]), 1e3 * decoder["ms_per_token"])
        self.assertEqual(float(table[-1]["ci95_high_us"]), 1e3 * decoder["ci95_ms"][1])
        self.assertEqual(float(table[-1]["decode_tok_s"]), decoder["decode_tok_s"])


class OtavaTest(ExportTest):
    def test_a_line_a_pass_and_a_number_in_every_cell(self):
        output = self.folder / "out.csv"
        code, out, err = run_main(self.history(3), "--format", "otava", "-o", output)
        self.assertEqual((code, out), (0, ""), err)
        with open(output, newline="") as file:
            table = list(csv.reader(file))
        self.assertEqual(len(table), 4)
        self.assertEqual(table[0][:2], ["time", "commit"])
        self.assertEqual(len(table[0]), 2 + len(self.cases) + 1)
        self.assertEqual([line[1] for line in table[1:]], [f"{number:040d}" for number in range(3)])
        self.assertEqual(sorted(line[0] for line in table[1:]), [line[0] for line in table[1:]])
        for line in table[1:]:
            self.assertTrue(all(float(cell) > 0 for cell in line[2:]))
        with open(self.folder / "out.yaml") as file:
            test = json.load(file)["tests"]["out"]
        self.assertEqual(test["file"], str(output))
        self.assertEqual(list(test["metrics"]), table[0][2:])
        self.assertEqual({metric["direction"] for metric in test["metrics"].values()}, {-1})

    def test_a_row_that_a_pass_lacks_is_left_out_or_filled(self):
        path = self.history(2)
        self.machine.commit = "f" * 40
        with open(path, "a") as file:
            for line in self.machine.run("bench_all", self.cases[1:]) + self.machine.decoder_run(decoder_cases((1,))):
                file.write(json.dumps(line) + "\n")
        code, out, err = run_main(path, "--format", "otava")
        self.assertEqual(code, 0)
        self.assertIn("1 row not measured in every pass left out", err)
        self.assertEqual(len(next(csv.reader(io.StringIO(out)))), 2 + len(self.cases))
        code, out, err = run_main(path, "--format", "otava", "--fill")
        self.assertEqual(code, 0)
        table = list(csv.reader(io.StringIO(out)))
        (filled,) = [column for column in zip(*table) if column[2] == column[3]]
        self.assertTrue(filled[0].startswith(self.cases[0].kernel))

    def test_injected_runs_are_no_history(self):
        lines = self.machine.run("bench_all", self.cases)
        lines += self.machine.run("bench_all", self.cases, injected={"slowdown_percent": 3})
        code, out, err = run_main(write(self.folder / "a.jsonl", lines), "--format", "otava")
        self.assertEqual(code, 0)
        self.assertIn("1 run with injected effects left out", err)
        self.assertEqual(len(out.splitlines()), 2)

    def test_two_machines_are_one_history_only_when_told_so(self):
        lines = self.machine.run("bench_all", self.cases)
        other = Machine(seed=9, gpu={"driver": "999.1"}, start=self.machine.now)
        lines += other.run("bench_all", self.cases)
        path = write(self.folder / "a.jsonl", lines)
        code, out, err = run_main(path, "--format", "otava")
        self.assertEqual((code, out), (3, ""))
        self.assertIn("driver: 999.1 and 580.1", err)
        self.assertEqual(run_main(path, "--format", "otava", "--across")[0], 0)


class FileTest(ExportTest):
    def test_a_file_that_cannot_be_written_leaves_what_was_there(self):
        path = self.history(1)
        self.assertIn("cannot write", run_main(path, "--format", "csv", "-o", self.folder / "no/such.csv")[2])
        output = self.folder / "out.csv"
        with open(output, "w") as file:
            file.write("before")

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        command = [sys.executable, "-m", "tokline", "export", path, "--format", "csv", "-o", output]
        result = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, f"scripts/records export: cannot write {output}: File too large\n")
        with open(output) as file:
            self.assertEqual(file.read(), "before")
        self.assertEqual(sorted(os.listdir(self.folder)), ["history.jsonl", "out.csv"])

    def test_a_written_file_is_whole_and_readable_by_others(self):
        output = self.folder / "out.csv"
        mask = os.umask(0o022)
        self.addCleanup(os.umask, mask)
        self.assertEqual(run_main(self.history(1), "--format", "csv", "-o", output)[0], 0)
        self.assertEqual(os.stat(output).st_mode & 0o777, 0o644)
        self.assertEqual(sorted(os.listdir(self.folder)), ["history.jsonl", "out.csv"])

    def test_bad_input_is_named(self):
        empty = write(self.folder / "empty.jsonl", [])
        code, out, err = run_main(empty, "--format", "csv")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("empty.jsonl", err)
        headers = write(self.folder / "headers.jsonl", self.machine.run("bench_all", []))
        code, _, err = run_main(headers, "--format", "csv")
        self.assertEqual((code, err), (1, f"scripts/records export: {headers}: no rows\n"))

    def test_misuse(self):
        path = self.history(1)
        self.assertEqual(run_main(path)[0], 2)
        self.assertEqual(run_main(path, "--format", "csv", "--fill")[0], 2)
        self.assertEqual(run_main(path, "--format", "otava", "-o", self.folder / "x.yaml")[0], 2)
        self.assertEqual(run_main("--help")[0], 0)


if __name__ == "__main__":
    unittest.main()
