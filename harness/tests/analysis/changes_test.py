"""scripts/records changes: every row beyond its noise is listed, losses first, and none that is not."""

import unittest

from command_case import CommandTest, unwrapped
from synthetic import DecoderCase, Effect, KernelCase, Machine


def case(name, us=10.0, **how):
    return KernelCase("linear", (("name", name),), us, **how)


class ChangesTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.old = Machine(seed=1, commit="a" * 40)
        self.new = Machine(seed=2, commit="b" * 40)
        self.new.wait(days=1)
        self.cases = [case(name) for name in ("lost", "won", "same", "little")]
        self.effects = [Effect(20, shape="lost"), Effect(-30, shape="won"), Effect(-1, shape="little")]

    def changes(self, *arguments):
        return unwrapped(self.run_command("changes", *arguments, "--markdown", expect=0).stdout).splitlines()

    def rows(self, lines):
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]]

    def test_losses_come_first_and_what_stays_within_its_noise_is_counted_alone(self):
        before = self.write("a.jsonl", self.old.run("bench_x", self.cases))
        now = self.write("b.jsonl", self.new.run("bench_x", [*self.cases, case("fresh")], self.effects))
        lines = self.changes(before, now)
        self.assertRegex(lines[0], r"^Of 4 rows that were measured before, 1 became slower or otherwise worse "
                         r"and 1 faster; 0 differ .* 2 did not change. The largest loss is linear lost .* \(\+(19|20)\.\d %, slower\). "
                         r"1 row had no earlier")
        rows = self.rows(lines)
        self.assertEqual([row[0].split()[1] for row in rows], ["lost", "won"])
        self.assertEqual(rows[0][5:], ["aaaaaaa -> bbbbbbb", "the same", "slower"])

    def test_a_loss_of_two_percent_within_the_noise_is_listed_last(self):
        effects = [Effect(-30, shape="won"), Effect(1.5, shape="little"), Effect(-1.5, shape="same")]
        before = self.write("a.jsonl", self.old.run("bench_x", self.cases))
        now = self.write("b.jsonl", self.new.run("bench_x", self.cases, effects))
        lines = self.changes(before, now)
        self.assertIn("3 did not change (1 of them slower by 2 % or more, listed last).", lines[0])
        rows = self.rows(lines)
        self.assertEqual([row[0].split()[1] for row in rows], ["won", "little"])
        self.assertEqual(rows[1][7], "same")

    def test_a_row_is_held_against_the_newest_one_of_an_earlier_run(self):
        steps = [Effect(80, shape="lost")], [Effect(20, shape="lost")], [Effect(50, shape="lost")]
        runs = []
        for effects in steps:
            runs.append(self.old.run("bench_x", self.cases[:1], effects))
            self.old.wait(days=1)
        everything = self.write("all.jsonl", runs[0] + runs[1] + runs[2])
        now = self.write("now.jsonl", runs[2])
        row, = self.rows(self.changes(everything, now))
        self.assertEqual((row[1], row[2], row[7]), ("12.0", "15.0", "slower"))

    def test_another_gpu_a_row_that_became_wrong_and_one_that_cannot_be_decided_are_listed(self):
        elsewhere = Machine(seed=3, commit="c" * 40, gpu={"uuid_hash": "1"})
        elsewhere.wait(days=1)
        before = self.write("a.jsonl", self.old.run("bench_x", self.cases) + self.old.decoder_run([DecoderCase()]))
        now = self.write("b.jsonl", elsewhere.run("bench_x", self.cases, refused={self.cases[2]: "unverified: wrong"})
                         + elsewhere.decoder_run([DecoderCase()], [Effect(us=60, op="down")]))
        lines = self.changes(before, now)
        self.assertIn("1 became slower or otherwise worse and 0 faster; 1 differ by more than the noise, but undecided "
                      "(1 slower)", lines[0])
        wrong, decoder = self.rows(lines)
        self.assertEqual(wrong[6:], ["another", "unverified; refused in 1 of 1 run: unverified: wrong"])
        self.assertEqual((decoder[0].split()[0], decoder[7].split(":")[0]), ("decoder", "undecided"))

    def test_a_row_that_became_worse_in_another_way_is_a_loss(self):
        before = self.write("a.jsonl", self.old.run("bench_x", self.cases))
        now = self.write("b.jsonl", self.new.run("bench_x", self.cases, self.effects[:2],
                                                 memory=dict.fromkeys(self.cases[:3], 10**9),
                                                 errors={self.cases[3]: 0.9}))
        lines = self.changes(before, now)
        self.assertRegex(lines[0], "4 became slower or otherwise worse and 0 faster; .* 0 did not change. "
                                   "The largest loss is linear lost ")
        found = {row[0].split()[1]: row[7] for row in self.rows(lines)}
        self.assertRegex(found["lost"], r"^slower; memory grew from [\d.]+ to 953.7 MiB$")
        self.assertRegex(found["won"], "^faster; memory grew")
        self.assertRegex(found["same"], "^same; memory grew")
        self.assertRegex(found["little"], r"^same; error grew from 0.\d\d to 0.90 of its bound$")

    def test_a_disturbed_row_without_a_difference_neither_changed_nor_did_not(self):
        disturbed = dict.fromkeys(self.cases[:3], "throttled: thermal")
        before = self.write("a.jsonl", self.old.run("bench_x", self.cases, disturbed=disturbed))
        now = self.write("b.jsonl", self.new.run("bench_x", self.cases, self.effects))
        lines = self.changes(before, now)
        self.assertIn("0 became slower or otherwise worse and 0 faster; 2 differ by more than the noise, but undecided "
                      "(1 slower); 1 did not change; 1 show no difference, but rest on disturbed runs.", lines[0])
        self.assertEqual([row[0].split()[1] for row in self.rows(lines)], ["lost", "won"])

    def test_a_disturbed_row_that_is_a_little_slower_is_listed_last_and_marked(self):
        now = self.write("b.jsonl", self.new.run("bench_x", self.cases, [Effect(1.5, shape="little"), Effect(-1.5, shape="same"),
                                                                         Effect(-30, shape="won")],
                                                 disturbed={self.cases[3]: "throttled: thermal"}))
        lines = self.changes(self.write("a.jsonl", self.old.run("bench_x", self.cases)), now)
        self.assertIn("1 show no difference, but rest on disturbed runs (1 of them slower by 2 % or more, listed last).", lines[0])
        rows = self.rows(lines)
        self.assertEqual([(row[0].split()[1], row[7]) for row in rows], [("won", "faster"), ("little", "disturbed")])

    def test_a_row_that_was_refused_before_did_not_stay_the_same(self):
        before = self.write("a.jsonl", self.old.run("bench_x", self.cases, refused={self.cases[2]: "unverified: wrong"}))
        self.old.wait(days=1)
        now = self.write("b.jsonl", self.old.run("bench_x", self.cases))
        counts = len(self.cases) - 1
        self.assertRegex(self.changes(before, now)[0],
                         f"^Of {counts} rows that were measured before, .*; {counts} did not change.* 1 row had no earlier figure")


if __name__ == "__main__":
    unittest.main()
