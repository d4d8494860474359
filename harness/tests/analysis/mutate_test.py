"""scripts/maintain/mutate on a scratch repository: which bugs count as caught, survived and not run."""

import contextlib
import io
import json
import re
import shutil
import sys
import unittest
from unittest import mock

import mutate
from command_case import unwrapped
from folder_case import FolderTest
from tokline.command import ended
from tokline.stop import Stop

CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(scratch CXX)
include_directories(${PROJECT_SOURCE_DIR})
add_library(sum STATIC kernels/sum.cc)
add_executable(sum_test sum_test.cc)
target_link_libraries(sum_test sum)
"""
SUM = "int Sum(int a, int b) {\n  const bool same = a == b;\n  return same ? 2 * b : a + b;\n}\n"
OTHER = "\nint Twice(int a) {\n  return a + a;\n}\n\nconstexpr int kTable[] = {\n    7,\n};\n"
SUM_TEST = r"""
#include <cstdio>
int Sum(int a, int b);
int main() {
  const bool right = Sum(3, 3) == 6;
  std::printf("[ RUN      ] SumTest.OfEqualNumbers\n[%s] SumTest.OfEqualNumbers (0 ms)\n",
              right ? "       OK " : "  FAILED  ");
  return right ? 0 : 1;
}
"""


def mutation(name, old="2 * b", new="b", tests=("sum_test",), file="sum.cc"):
    return {"name": name, "bug": f"bug of {name}", "file": file, "old": old, "new": new, "tests": list(tests)}


def run_of(revision, gpu, results, mutations, text=SUM):
    """A run of {mutation: {test program: tests that caught it}}, made when sum.cc held the text."""
    digests = {m["name"]: mutate.digest(m, text) for m in mutations}
    return {
        "revision": revision,
        "gpu": gpu,
        "unmutated": {"sum_test": {"tests": 3, "skipped": [], "seconds": 0.1}},
        "mutations": [
            {
                "name": name,
                "digest": digests[name],
                "results": {
                    test: {"caught_by": {one: "fails" for one in caught}, "seconds": 0.1}
                    for test, caught in by_test.items()
                },
            }
            for name, by_test in results.items()
        ],
    }


def ends(failed=()):
    """What run_tests() says of a program of which these tests failed."""
    return {"code": 1 if failed else 0, "failed": list(failed), "skipped": [], "started": 1, "unended": [],
            "output": "", "seconds": 0.1}


# The first two show in times alone, and not on every host. The others are races that no test provokes: what would be
# read too early is there all the same. The second race has a test with such launches, but an H200 lets the next kernel
# wait for both kernels before it, which no manual promises.
SURVIVORS = ["slabs: the flag of a partial is raised when the first warp has written its row",
             "a kernel of run lanes without tasks ends before its predecessor, for which the next one does not wait",
             "the step is noted before every block has read the state"]


class MutateTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.root = self.folder.resolve()
        self.source = self.root / "kernels/sum.cc"
        self.source.parent.mkdir()
        self.source.write_text(SUM)

    def run_command(self, *arguments, mutations, expect, folder="kernels"):
        """What scripts/maintain/mutate prints in the scratch repository, of which one folder has mutations."""
        data = self.root / folder / "mutations.json"
        data.write_text(json.dumps(mutations))
        self.addCleanup(data.unlink, missing_ok=True)
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.object(mutate, "ROOT", self.root),
            mock.patch.object(sys, "argv", ["scripts/maintain/mutate", *map(str, arguments)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = ended("scripts/maintain/mutate", mutate.main)
        self.assertEqual(code, expect, out.getvalue() + err.getvalue())
        return out.getvalue() + err.getvalue()

    def report(self, mutations, *runs, expect=0):
        """{bug: (caught by, run)} of the page of records of one run each, and the page."""
        paths = []
        for i, one in enumerate(runs):
            paths.append(self.root / f"record{i}.json")
            paths[-1].write_text(mutate.record_text([one]))
        page = self.root / "page.md"
        self.run_command("report", "--results", *paths, "--out", page, mutations=mutations, expect=expect)
        text = page.read_text()
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
        table = [row for row in rows if row and row[0].startswith("bug of")]
        self.assertEqual([row[0] for row in table], [one["bug"] for one in mutations], "each stands once")
        return {row[0]: (row[2], row[3]) for row in table}, unwrapped(text)

    def run_mutants(self, out, mutations, tree=None, revised="new", run_tests=lambda *_: ends(["A.B"])):
        """What run_and_record() prints of mutants that do what run_tests says; unmutated programs pass."""
        def run(program, *rest):
            return ends() if program.parent.name == "unmutated" else run_tests(program, *rest)

        said = io.StringIO()
        with (mock.patch.object(mutate, "run_tests", run), contextlib.redirect_stdout(said),
              contextlib.redirect_stderr(said)):
            mutate.run_and_record(self.root, mutations, tree or mutations, revised, "gpu", 1, out)
        return said.getvalue()

    def test_a_bug_counts_by_the_last_record_that_has_it_as_it_is_now(self):
        mutations = [mutation("old", tests=["sum_cuda_test"]), mutation("both", tests=["sum_test", "sum_cuda_test"]),
                     mutation("rewritten", new="3 * b", tests=["sum_cuda_test"]),
                     mutation("added", tests=["sum_cuda_test"])]
        before = [*mutations[:2], {**mutations[2], "new": "4 * b"}]
        of_gpu = {"old": {"sum_cuda_test": ["CudaTest.A"]},
                  "both": {"sum_test": ["Test.Old"], "sum_cuda_test": ["CudaTest.B"]},
                  "rewritten": {"sum_cuda_test": ["CudaTest.C"]}}
        rows, text = self.report(mutations, run_of("aaa", "A GPU", of_gpu, before),
                                 run_of("bbb", None, {"both": {"sum_test": ["Test.New"]}}, mutations))
        self.assertEqual(rows["bug of old"], ("`CudaTest.A`", "A GPU, aaa"))
        self.assertEqual(rows["bug of both"], ("`Test.New`; `CudaTest.B`", "CPU, bbb; A GPU, aaa"))
        for bug in ("bug of rewritten", "bug of added"):
            self.assertEqual(rows[bug], ("**not run yet**: `sum_cuda_test`", ""))
        self.assertIn("4 bugs", text)
        self.assertIn("2 are caught by every test program that is named for them, 0 survive, 2 have not", text)
        self.assertIn("| A GPU, aaa |  | 2 | 1 | 3 |", text)
        self.assertIn("| CPU, bbb |  | 1 | 1 | 3 |", text)
        self.assertIn("CUDA tests are named for 4 of the bugs: 2 (50.0 %) are caught by every CUDA program that is named for "
                      "them, 2 (50.0 %) by one at least. The oldest verdicts of these that count are those of A GPU, aaa.", text)

    def test_a_verdict_goes_when_the_function_is_rewritten_and_stays_when_all_else_is(self):
        bug = mutation("seen", tests=["sum_cuda_test"])
        whole = mutation("of_table", old="7,", new="8,", tests=["sum_cuda_test"])
        caught = {name: {"sum_cuda_test": ["Test.A"]} for name in ("seen", "of_table")}
        before = "#include <sum.h>\n\nnamespace n {\n\n" + SUM + OTHER + "\n}  // namespace n\n"
        for changed, standing in (
            (before, ["seen", "of_table"]),
            (before.replace("sum.h", "moved/sum.h"), ["seen"]),
            (before.replace("a + a", "2 * a"), ["seen"]),
            (before.replace("a == b", "b == a"), []),  # neither the old text nor the new one
            (before.replace("int Sum(int a, int b)", "int Sum(long a, int b)"), []),
        ):
            self.source.write_text(changed)
            rows, _ = self.report([bug, whole], run_of("aaa", "A GPU", caught, [bug, whole], before))
            self.assertEqual([name for name in caught if rows[f"bug of {name}"][1]], standing, changed)

    def test_the_text_of_a_verdict_is_the_definition_around_the_change(self):
        template = "template <typename T,\n          int kSize>\nT Get(\n    int a) {\n  return {a};\n}\n"
        short = "int Two() { return 2; }\n"
        text = "constexpr int kOne = 1;\n// Says one.\n" + template + short + "int Three();\n" + SUM + OTHER
        for old, whole in (
            ("return {a}", template),
            ("T Get(", template),
            ("return 2", short),
            ("2 * b", SUM),
            ("return a + a", OTHER[1 : OTHER.index("\n\n") + 1]),
            ("kOne = 1", None),
            ("Three", None),
            ("7,", None),
            ("Says one", None),
            ("return 2; }\nint Three", None),
        ):
            self.assertEqual(mutate.enclosing_definition(text, old), whole, old)

    def test_a_verdict_outlives_comments_and_line_breaks_but_no_change_of_code(self):
        digest = mutate.digest(mutation("here"), SUM)
        for old, new, same in (
            ("same = a == b;", "same =\n      a == b;  // it's the same\n", True),
            ("{\n", "{  /* adds\n them */\n  // \"twice\n", True),
            ("a == b", "a != b", False),
            ("same = a == b;", 'same = "//1" == b;', False),
        ):
            self.assertEqual(mutate.digest(mutation("here"), SUM.replace(old, new)) == digest, same, new)
        words = [mutate.code_of(f'Say("{word} // or not", \'"\');  // at all') for word in ("so", "no")]
        self.assertEqual(words, ['Say("so // or not", \'"\');', 'Say("no // or not", \'"\');'])

    def test_mutations_are_those_of_all_folders_and_move_with_them(self):
        said = self.run_command("list", mutations=[mutation("here")], expect=0)
        self.assertIn("kernels/sum.cc, caught by sum_test", said)
        (self.root / "harness/deep").mkdir(parents=True)
        shutil.move(self.root / "kernels", self.root / "harness/deep/sums")
        said = self.run_command("list", mutations=[mutation("here")], expect=0, folder="harness/deep/sums")
        self.assertIn("harness/deep/sums/sum.cc, caught by sum_test", said)
        self.assertEqual(mutate.digest(mutation("here"), SUM), mutate.digest(mutation("here", file="moved.cc"), SUM))
        (self.root / "benches").mkdir()
        shutil.copytree(self.root / "harness/deep/sums", self.root / "benches", dirs_exist_ok=True)
        said = self.run_command("list", mutations=[mutation("here")], expect=1, folder="harness/deep/sums")
        self.assertIn("mutation here appears twice", said)

    def test_a_bug_that_one_of_its_programs_misses_survives(self):
        mutations = [mutation("seen", tests=["sum_test", "other_test"])]
        results = {"seen": {"sum_test": ["Test.A"], "other_test": []}}
        rows, text = self.report(mutations, run_of("aaa", None, results, mutations), expect=1)
        self.assertEqual(rows["bug of seen"][0], "`Test.A`; **survived** `other_test`")
        self.assertIn("0 are caught by every test program that is named for them, 1 survive", text)
        self.assertNotIn("CUDA tests are named", text)

    def test_a_bug_that_one_cuda_program_misses_is_caught_by_one_at_least_and_the_oldest_verdict_is_told(self):
        mutations = [mutation("seen", tests=["sum_cuda_test", "other_cuda_test"]), mutation("old", tests=["sum_cuda_test"]),
                     mutation("of_cpu", tests=["sum_test"])]
        runs = [run_of("bbb-dirty", "B GPU", {"old": {"sum_cuda_test": ["Test.A"]}}, mutations),
                run_of("aaa", "A GPU", {"seen": {"sum_cuda_test": ["Test.A"], "other_cuda_test": []}}, mutations)]
        with mock.patch.object(mutate, "commit_date", lambda revised: {"aaa": "2026-11-20", "bbb-dirty": "2026-11-21"}[revised]):
            _, text = self.report(mutations, *runs, expect=1)
        self.assertIn("named for 2 of the bugs: 1 (50.0 %) are caught by every CUDA program that is named for them, 2 (100.0 %) "
                      "by one at least. The oldest verdicts of these that count are those of A GPU, aaa, of 2026-11-20.", text)
        self.assertIn("| B GPU, bbb-dirty | 2026-11-21 | 1 |", text)

    def test_missing_are_those_without_a_verdict_as_they_are_now(self):
        mutations = [mutation(name) | {"digest": name} for name in ("run", "rewritten", "new")]
        ran = {"sum_test": {"caught_by": {"Test.A": "fails"}}}
        run = {"mutations": [{"name": "run", "digest": "run", "results": ran},
                             {"name": "rewritten", "digest": "older", "results": ran}]}
        with (mock.patch.object(mutate, "read_mutations", return_value=mutations),
              mock.patch.object(mutate, "read_runs", return_value=[run])):
            for missing, names in ((True, ["rewritten", "new"]), (False, ["run", "rewritten", "new"])):
                found = mutate.chosen(mock.Mock(missing=missing), lambda test: True)
                self.assertEqual([one["name"] for one in found], names)

    def test_old_text_must_be_found_exactly_once(self):
        for text, count in (("", 0), (SUM + SUM, 2)):
            self.source.write_text(text)
            said = self.run_command("list", mutations=[mutation("lost")], expect=1)
            self.assertIn(f"mutation lost: its old text is found {count} times in kernels/sum.cc", said)
        said = self.run_command("list", mutations=[mutation("lost", file="gone.cc")], expect=1)
        self.assertIn("mutation lost: cannot read kernels/gone.cc", said)
        said = self.run_command("list", mutations=[mutation("lost", file="../sum.cc")], expect=1)
        self.assertIn("mutation lost: ../sum.cc is not in the folder of", said)

    def test_every_seeded_bug_is_missed_when_its_text_goes_or_comes_twice(self):
        mutations = mutate.read_mutations()
        for one in mutations:
            (self.root / one["file"]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(mutate.ROOT / one["file"], self.root / one["file"])
        for one in mutations:
            file = self.root / one["file"]
            text = file.read_text(encoding="utf-8")
            for changed, count in ((text.replace(one["old"], ""), 0), (text + one["old"], 2)):
                file.write_text(changed, encoding="utf-8")
                seed = {key: one[key] for key in mutate.FIELDS} | {"file": file.name}
                said = self.run_command("list", mutations=[seed], expect=1, folder=file.parent)
                self.assertIn(f"mutation {one['name']}: its old text is found {count} times", said)
            file.write_text(text, encoding="utf-8")
            (file.parent / "mutations.json").unlink()

    def test_a_device_has_one_record_of_which_every_verdict_could_count(self):
        results = mutate.ROOT / "results"
        self.assertEqual([str(path.relative_to(results)) for path in sorted(results.glob("*/mutations*"))],
                         ["cpu/mutations.json", "h100/mutations.json", "h200/mutations.json"])
        for path in mutate.RECORDS:
            runs = mutate.read_runs([path])
            self.assertEqual(path.read_text(), mutate.record_text(runs), path)
            verdicts = [(m["name"], test) for one in runs for m in one["mutations"] for test in m["results"]]
            self.assertEqual(len(verdicts), len(set(verdicts)), path)
            self.assertTrue(all(one["mutations"] for one in runs), path)

    def test_a_run_replaces_the_verdicts_that_it_has_and_drops_those_that_count_no_more(self):
        both = ["sum_test", "sum_cuda_test"]
        before = [mutation("again", tests=both), mutation("stays"), mutation("rewritten", new="4 * b"),
                  mutation("gone"), mutation("not_named", tests=both)]
        tree = [before[0], before[1], mutation("rewritten", new="3 * b"), mutation("not_named")]
        tree = [one | {"digest": mutate.digest(one, SUM)} for one in tree]
        first = {name: {"sum_test": ["Test.A"]} for name in ("again", "rewritten", "gone")}
        first["again"]["sum_cuda_test"] = ["CudaTest.A"]
        second = {"stays": {"sum_test": ["Test.B"]}, "not_named": {"sum_cuda_test": ["Test.B"]}}
        folder = self.root / "results"
        for name in ("one", "other"):
            (folder / name).mkdir(parents=True)
            (folder / name / "mutations.json").write_text(mutate.record_text(
                [run_of(f"{name} first", "gpu", first, before), run_of(f"{name} second", "gpu", second, before),
                 run_of("lapsed", "gpu", {"rewritten": {"sum_test": ["Test.C"]}}, before)]))
        untouched = (folder / "other/mutations.json").read_bytes()
        out = folder / "one/mutations.json"
        self.run_mutants(out, mutate.with_tests(tree[:1], lambda test: test == "sum_test"), tree)
        found = [(one["revision"], m["name"], test, list(result["caught_by"])) for one in mutate.read_runs([out])
                 for m in one["mutations"] for test, result in m["results"].items()]
        self.assertEqual(found, [("one first", "again", "sum_cuda_test", ["CudaTest.A"]),
                                 ("one second", "stays", "sum_test", ["Test.B"]),
                                 ("new", "again", "sum_test", ["A.B"])])
        self.assertEqual([one["revision"] for one in mutate.read_runs([out])], ["one first", "one second", "new"])
        self.assertEqual((folder / "other/mutations.json").read_bytes(), untouched)
        self.assertEqual([path.name for path in out.parent.iterdir()], ["mutations.json"])

    def test_mutants_that_the_tree_has_otherwise_are_not_run(self):
        tree = [mutation(name, tests=["sum_cuda_test"]) for name in ("same", "rewritten")]
        built = [*tree, mutation("gone", tests=["sum_cuda_test"])]
        built = [one | {"digest": mutate.digest(one, SUM)} for one in built]
        built[1]["digest"] = "older"
        (self.root / "manifest.json").write_text(json.dumps({"revision": "built", "mutations": built}))
        with mock.patch.object(mutate, "run_and_record", return_value=0) as ran:
            said = self.run_command("run", self.root, "--out", self.root / "r.json", mutations=tree, expect=0)
        self.assertIn("not run, because the tree has them otherwise now: rewritten, gone", said)
        self.assertEqual([one["name"] for one in ran.call_args.args[1]], ["same"])

    def test_as_many_programs_run_at_once_as_there_are_cpus_up_to_16(self):
        for cpus, jobs in ((64, 16), (3, 3), (None, 1)):
            with (mock.patch.object(mutate.os, "cpu_count", return_value=cpus),
                  mock.patch.object(mutate, "run", return_value=0) as run):
                self.run_command("run", "programs", "--out", "r.json", mutations=[], expect=0)
            self.assertEqual(run.call_args.args[0].jobs, jobs)

    def test_a_broken_record_is_refused_before_the_work_with_what_it_has(self):
        out = self.root / "r.json"
        run = run_of("aaa", None, {}, [])
        verdict = {"name": "any", "results": {}}
        for text, why in (
            ('{"schema": 2, "runs": [', "r.json is not JSON: Expecting value: line 1"),
            ('{"schema": 1, "mutations": []}', "r.json has schema 1; this reads 2"),
            ("[]", "r.json has schema None; this reads 2"),
            ('{"schema": 2}', "r.json has ['schema'] where the fields must be ['runs', 'schema']"),
            (mutate.record_text([run | {"host": 1}]), "r.json has ['gpu', 'host', 'mutations', 'revision',"),
            (mutate.record_text([run | {"mutations": [verdict]}]), "r.json has ['name', 'results'] where the fields"),
            ('{"schema": 2, "runs": [7]}', "r.json has 7 where the fields must be"),
        ):
            out.write_text(text)
            for command in (("cpu", self.root / "out", "--out", out), ("run", self.root, "--out", out),
                            ("report", "--results", out, "--out", self.root / "page.md")):
                self.assertIn(why, self.run_command(*command, mutations=[mutation("any")], expect=1))
            self.assertEqual(out.read_text(), text)
        self.assertFalse((self.root / "out").exists())

    def test_the_committed_page_is_that_of_the_committed_records(self):
        page = self.root / "page.md"
        with (mock.patch.object(sys, "argv", ["scripts/maintain/mutate", "report", "--out", str(page)]),
              contextlib.redirect_stdout(io.StringIO())):
            mutate.main()
        text, committed = page.read_text(), mutate.REPORT.read_text()
        if not all(mutate.commit_date(one["revision"]) for one in mutate.read_runs(mutate.RECORDS)):  # in a shallow clone
            text, committed = (unwrapped(re.sub(r"(, of)? 20\d\d-\d\d-\d\d\b", "", each)) for each in (text, committed))
            oldest = r"The oldest verdicts .*"
            text, committed = (re.sub(oldest, "", re.sub(" +", " ", each)) for each in (text, committed))
        self.assertEqual(text, committed, "scripts/maintain/mutate report writes it anew")
        self.assertEqual(re.findall(r"^\| (.*?) \| .*\*\*survived\*\*", text, re.MULTILINE), SURVIVORS)

    def test_a_record_that_cannot_be_written_is_refused_before_the_work(self):
        said = self.run_command(
            "cpu", self.root / "out", "--out", self.root / "gone/r.json", mutations=[mutation("any")], expect=1)
        self.assertIn("is a folder, or is in none", said)
        self.assertFalse((self.root / "out").exists())

    def test_a_program_that_skips_all_of_its_tests_leaves_out_its_mutants_only(self):
        def run_tests(program, timeout, names=None):
            return ends() | {"code": mutate.NO_DEVICE if "host_cuda_test" in str(program) else 0}

        mutations = [
            {**mutation("here", tests=["sum_cuda_test"]), "digest": "0"},
            {**mutation("not_here", tests=["host_cuda_test"]), "digest": "1"},
        ]
        out = self.root / "run.json"
        said = io.StringIO()
        with (mock.patch.object(mutate, "run_tests", run_tests), contextlib.redirect_stdout(said),
              contextlib.redirect_stderr(said)):
            mutate.run_and_record(self.root, mutations, mutations, "aaa", "gpu", 1, out)
            [run] = mutate.read_runs([out])
            self.assertEqual([m["name"] for m in run["mutations"]], ["here"])
            self.assertIn("0 of 1 mutations caught by every program named for them, 1 not run", said.getvalue())
            with self.assertRaisesRegex(Stop, "host_cuda_test skipped all of their tests: no CUDA device"):
                mutate.run_and_record(self.root, mutations[1:], mutations, "aaa", "gpu", 1, out)

    def test_an_interrupted_run_leaves_the_record_whole_and_what_it_would_be_beside_it(self):
        def run_tests(program, *_):
            if program.parent.name == "second":
                raise KeyboardInterrupt
            return ends(["A.B"])

        mutations = [{"name": name, "digest": name, "tests": ["a_cuda_test"]} for name in ("first", "second")]
        out = self.root / "run.json"
        self.run_mutants(out, mutations, revised="before")
        before = out.read_bytes()
        with self.assertRaises(KeyboardInterrupt):
            self.run_mutants(out, mutations, run_tests=run_tests)
        self.assertEqual(out.read_bytes(), before)
        kept = mutate.read_runs([self.root / "run.json.unfinished"])
        self.assertEqual([(one["revision"], m["name"]) for one in kept for m in one["mutations"]],
                         [("before", "second"), ("new", "first")])
        with mock.patch.object(mutate, "write_whole", side_effect=KeyboardInterrupt):  # while a file is written
            with self.assertRaises(KeyboardInterrupt):
                self.run_mutants(out, mutations)
        self.assertEqual(out.read_bytes(), before)

    def test_a_run_of_no_mutation_does_not_take_what_an_earlier_one_left(self):
        (self.root / "run.json.unfinished").write_text("an earlier run's")
        with self.assertRaisesRegex(Stop, "no mutation to run"):
            self.run_mutants(self.root / "run.json", [])
        self.assertFalse((self.root / "run.json").exists())

    def test_every_source_that_includes_a_mutated_header_is_compiled(self):
        for path, text in (("kernels/device/packets.cuh", ""), ("kernels/send/tile.cu", "packets"),
                           ("kernels/send/few.cu", "packets"), ("kernels/send/alone.cu", "other"),
                           ("kernels/receive/all.cu", "packets")):
            (self.root / path).parent.mkdir(exist_ok=True)
            (self.root / path).write_text(f'#include "kernels/device/{text}.cuh"\n')
        shared = {"name": "a", "file": "kernels/device/packets.cuh",
                  "tests": ["send_cuda_test", "receive_cuda_test", "decoder_cuda_test"]}
        with mock.patch.object(mutate, "ROOT", self.root):
            for test, sources in (("send_cuda_test", ["kernels/send/few.cu", "kernels/send/tile.cu"]),
                                  ("receive_cuda_test", ["kernels/receive/all.cu"]),
                                  ("decoder_cuda_test", ["kernels/send/few.cu", "kernels/send/tile.cu"])):
                self.assertEqual(mutate.sources_of(shared, test), sources)

    @unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "needs cmake and ninja")
    def test_cpu_runs_the_cpu_tests_of_each_mutant_and_leaves_those_of_a_gpu(self):
        (self.root / "CMakeLists.txt").write_text(CMAKE)
        (self.root / "sum_test.cc").write_text(SUM_TEST)
        mutations = [mutation("caught", tests=["sum_test", "sum_cuda_test"]),
                     mutation("missed", old="a + b", new="a - b"), mutation("of_gpu", tests=["sum_cuda_test"])]
        path = self.root / "record.json"
        said = self.run_command("cpu", self.root / "out", "--out", path, mutations=mutations, expect=1)
        self.assertIn("SURVIVED: missed in sum_test", said)
        self.assertIn("1 of 2 mutations caught by every program named for them", said)
        self.assertEqual(self.source.read_text(), SUM)
        [written] = mutate.read_runs([path])
        self.assertEqual((written["gpu"], written["unmutated"]["sum_test"]["tests"]), (None, 1))
        caught = {m["name"]: {t: r["caught_by"] for t, r in m["results"].items()} for m in written["mutations"]}
        self.assertEqual(
            caught, {"caught": {"sum_test": {"SumTest.OfEqualNumbers": "fails"}}, "missed": {"sum_test": {}}})
        rows, _ = self.report(mutations, written, expect=1)
        self.assertIn("**not run yet**: `sum_cuda_test`", rows["bug of caught"][0])
        self.assertEqual(rows["bug of of_gpu"][0], "**not run yet**: `sum_cuda_test`")


if __name__ == "__main__":
    unittest.main()
