"""scripts/records ablate: the words for what an op is worth, from records and from a program that it runs."""
import functools
import json
import os
import re
import subprocess
import sys
import textwrap
import unittest

from command_case import run_here
from folder_case import FolderTest
from synthetic import DecoderCase, Machine, write

from tokline import ablate

run_main = functools.partial(run_here, "ablate")


class AblateTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.machine = Machine(seed=11, run_noise=0.001)

    def record(self, *gains):
        """A record of one ablation for each (name, gain in the decoder in percent, isolated or None)."""
        header = self.machine.header("tokline ablate")
        lines = [self.machine.ablation(header, DecoderCase(), name, f"plain {name}", gain, isolated)
                 for name, gain, isolated in gains]
        return write(os.path.join(self.folder, "ablation.jsonl"), [header, *lines])

    def verdict(self, gain, isolated):
        code, out, err = run_main("--records", self.record(("down", gain, isolated)), "--format", "json")
        self.assertEqual(code, 0, err)
        return json.loads(out)["ablations"][0]["verdict"]

    def test_kernel_that_wins_alone_and_loses_in_the_decoder_is_said(self):
        self.assertEqual(self.verdict(-4, (10, 26.4)), "WINS ALONE, BUT LOSES in the decoder")

    def test_kernel_that_wins_alone_and_gains_nothing_is_said(self):
        self.assertEqual(self.verdict(0, (10, 26.4)), "WINS ALONE, BUT GAINS NOTHING in the decoder")

    def test_every_combination_has_its_own_words(self):
        said = {self.verdict(gain, (10, alone)) for gain in (-5, 0, 5) for alone in (8, 10, 12)}
        self.assertEqual(len(said), 9)
        self.assertEqual({self.verdict(gain, None) for gain in (-5, 0, 5)},
                         {"LOSES in the decoder", "gains nothing in the decoder", "wins in the decoder"})

    def test_an_effect_of_the_size_of_a_controls_is_called_none(self):
        for control, words in ((0.2, "LOSES in the decoder"), (4, "gains nothing in the decoder")):
            path = self.record(("control", 0, None), ("control", -control, None), ("prefetch", -2, None))
            code, out, _ = run_main("--records", path, "--format", "json")
            *controls, prefetch = json.loads(out)["ablations"]
            self.assertEqual(prefetch["verdict"], words)
            self.assertAlmostEqual(prefetch["equal_decoders_differ_by"], control / 100, delta=0.006)
            self.assertEqual({one["verdict"] for one in controls}, {"the same ops: what decoders differ by"})

    def test_noise_of_a_control_is_not_what_equal_decoders_differ_by(self):
        header = self.machine.header("tokline ablate")
        control = self.machine.ablation(header, DecoderCase(), "control", "the same", 0, (10, 10.8))
        control["end_to_end"]["without_ms"] = [
            value * (2 if number % 2 else 0.5) for number, value in enumerate(control["end_to_end"]["with_ms"][:-1])
        ] + [control["end_to_end"]["with_ms"][-1]]
        lines = [control, self.machine.ablation(header, DecoderCase(), "qkv", "plain", -5, (10, 9.5))]
        path = write(os.path.join(self.folder, "noisy.jsonl"), [header, *lines])
        out = json.loads(run_main("--records", path, "--format", "json")[1])["ablations"]
        self.assertEqual(out[1]["verdict"], "no faster alone, and LOSES in the decoder")

    def test_controls_of_another_decoder_say_nothing(self):
        header = self.machine.header("tokline ablate")
        lines = [self.machine.ablation(header, DecoderCase(batch=64), "control", "the same", 9),
                 self.machine.ablation(header, DecoderCase(batch=1), "prefetch", "plain", -2)]
        path = write(os.path.join(self.folder, "two.jsonl"), [header, *lines])
        out = json.loads(run_main("--records", path, "--format", "json")[1])["ablations"]
        self.assertEqual(out[1]["verdict"], "LOSES in the decoder")

    def test_noise_is_not_called_equality(self):
        noisy, clear = ([10] * 7, [9, 11, 9, 11, 10, 9, 11]), ([10] * 7, [20] * 7)
        for isolated, end_to_end, words in ((None, noisy, "too noisy to say in the decoder"),
                                            (clear, noisy, "too noisy to say in the decoder; wins alone"),
                                            (noisy, clear, "too noisy to say alone; wins in the decoder")):
            found = ablate.Ablation("row", "op", "plain", ablate.paired_speed_up(*end_to_end),
                                    isolated and ablate.paired_speed_up(*isolated))
            self.assertEqual(ablate.verdict(found), words)

    def test_fewer_rounds_than_an_interval_takes_give_no_verdict(self):
        header = self.machine.header("tokline ablate")
        for rounds, words in ((5, "too few rounds to say"), (6, "wins alone and in the decoder")):
            line = self.machine.ablation(header, DecoderCase(), "down", "plain down", 50, (10, 20), rounds=rounds)
            path = write(os.path.join(self.folder, f"{rounds}.jsonl"), [header, line])
            (result,) = json.loads(run_main("--records", path, "--format", "json")[1])["ablations"]
            self.assertEqual(result["verdict"], words)
            self.assertEqual(result["end_to_end"]["ci95"] is None, rounds < 6)
            self.assertEqual("x [" in run_main("--records", path)[1], rounds >= 6)

    def test_both_figures_stand_beside_each_other_with_intervals(self):
        code, out, _ = run_main("--records", self.record(("qkv", 10, (10, 20)), ("graphs", 30, None)))
        self.assertEqual(code, 0)
        qkv = next(line for line in out.splitlines() if line.strip().startswith("qkv"))
        self.assertRegex(qkv, r"(2\.0|1\.9)\d+x \[\d\.\d+, \d\.\d+\]\s+1\.(10|09)\d+x \[")
        graphs = next(line for line in out.splitlines() if line.strip().startswith("graphs"))
        self.assertEqual(graphs.count("x ["), 1)

    def test_interval_holds_the_true_ratio(self):
        inside = 0
        for seed in range(40):
            self.machine = Machine(seed=seed, run_noise=0.01)
            speed_up = ablate.digest(self.machine.ablation(self.machine.header("x"), DecoderCase(), "n", "i", 8)
                                     ).end_to_end
            inside += speed_up.low <= 1.08 <= speed_up.high
        self.assertGreaterEqual(inside, 36)

    def test_drift_moves_both_sides_of_a_round_and_no_ratio(self):
        drift = [1 + 0.1 * index for index in range(7)]
        speed_up = ablate.paired_speed_up(drift, [1.05 * value for value in drift])
        self.assertAlmostEqual(speed_up.low, 1.05)
        self.assertAlmostEqual(speed_up.high, 1.05)

    def test_refused_line_gives_its_reason(self):
        header = self.machine.header("tokline ablate")
        line = self.machine.ablation(header, DecoderCase(), "pdl", "waits", 5)
        line |= {"status": "refused", "reason": "interrupted"}
        del line["end_to_end"], line["isolated"]
        code, out, _ = run_main("--records", write(os.path.join(self.folder, "r.jsonl"), [header, line]))
        self.assertEqual(code, 0)
        self.assertIn("not measured: interrupted", out)

    def tokline(self, body):
        """A stand-in for tokline that runs `body` with the way to the record in `record`."""
        return self.program("tokline", f"#!{sys.executable}\nimport sys\n"
                            "record = sys.argv[sys.argv.index('--record') + 1]\n" + textwrap.dedent(body))

    def test_program_is_run_and_its_own_run_alone_is_printed(self):
        old = self.record(("old", 5, None))
        with open(old, encoding="utf-8") as file:
            lines = file.read()
        new = lines.replace("old", "new").replace(json.loads(lines.split("\n")[0])["run_id"], "feedfeedfeedfeed")
        program = self.tokline(f"""
            assert sys.argv[1:4] == ["ablate", "--model", "M"], sys.argv
            assert sys.argv[sys.argv.index("--batch") + 1] == "8", sys.argv
            open(record, "a").write({new!r})
        """)
        code, out, err = run_main("--model", "M", "--batch", "8", "--bin", program, "--record", old)
        self.assertEqual(code, 0, err)
        self.assertIn("new", out)
        self.assertNotIn("old", out)

    def test_failure_of_the_program_is_the_failure(self):
        program = self.tokline("sys.stderr.write('no such model'); sys.exit(2)")
        code, out, err = run_main("--model", "M", "--bin", program)
        self.assertEqual((code, out), (2, ""))

    def test_what_was_measured_is_kept_and_named_whatever_ends_it(self):
        with open(self.record(("down", 5, None)), encoding="utf-8") as file:
            line = file.read()
        program = self.tokline(f"""
            import os, signal, time
            signal.signal(signal.SIGTERM, lambda *_: (open(record, "a").write({line!r}), sys.exit(130)))
            if "hang" in sys.argv:
                os.kill(os.getppid(), signal.SIGHUP)
                time.sleep(60)
            open(record, "a").write({line!r})
        """)
        for more, out, code in ((["--", "hang"], os.devnull, 130), ([], "/dev/full", 1)):
            with self.subTest(out), open(out, "w", encoding="utf-8") as stream:
                done = subprocess.run([sys.executable, "-m", "tokline", "ablate", "--bin", program, *more], text=True,
                                      stdout=stream, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": self.folder})
                self.assertEqual(done.returncode, code, done.stderr)
                kept = re.search(r"what was measured is in (\S+)\n", done.stderr)[1]
                with open(os.path.join(kept, "ablation.jsonl"), encoding="utf-8") as file:
                    self.assertEqual(file.read(), line)

    def test_exit_codes(self):
        self.assertEqual(run_main("--model", "M", "--bin", os.path.join(self.folder, "none"))[0], 2)
        self.assertEqual(run_main("--records", "x", "--batch", "1")[0], 2)
        self.assertEqual(run_main("--records", os.path.join(self.folder, "none.jsonl"))[0], 1)
        kernels = write(os.path.join(self.folder, "k.jsonl"), self.machine.run("bench_linear", []))
        self.assertEqual(run_main("--records", kernels)[0], 3)

    def test_newest_built_program_is_found(self):
        self.assertIsNone(ablate.find_program(self.folder))
        for age, name in enumerate(("old", "new")):
            path = self.program(f"build/{name}/bin/tokline", "")
            os.utime(path, (1000 + age, 1000 + age))
        self.assertEqual(ablate.find_program(self.folder), str(path))

    def test_real_program_on_the_cpu(self):
        program = os.path.join(os.environ.get("TOKLINE_BIN_DIR", ""), "tokline")
        if not os.environ.get("TOKLINE_BIN_DIR") or not os.access(program, os.X_OK):
            self.skipTest(f"'{program}' is not built")
        said = os.path.join(self.folder, "said.json")
        code, out, err = run_main("--model", os.path.join(ablate.ROOT, "models", "qwen3-lookup"), "--device", "cpu",
                                  "--batch", "1", "--bin", program, "--format", "json", "--", "--only",
                                  "fused_mlp,paged_prefill", "--rounds", "6", "--prompt-tokens", "8", "--new-tokens", "4",
                                  "--json", said)
        self.assertEqual(code, 0, err)
        found = {line["name"]: line for line in json.loads(out)["ablations"]}
        self.assertEqual(set(found), {"control", "fused_mlp", "paged_prefill"})
        self.assertEqual([line["name"] for line in json.loads(out)["ablations"]].count("control"), 4)
        self.assertIsNotNone(found["fused_mlp"]["isolated"])
        self.assertIsNone(found["paged_prefill"]["isolated"])
        with open(said, encoding="utf-8") as file:
            for line in json.load(file)["ablations"]:
                self.assertEqual(line["verdict"], found[line["name"]]["verdict"], "both say it in the same words")


if __name__ == "__main__":
    unittest.main()
