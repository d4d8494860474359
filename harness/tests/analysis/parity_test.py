"""scripts/maintain/parity compare on a tiny checkpoint: passes as it is, and names the half of a layer that is wrong."""
import json
import os
import shutil
import subprocess
import unittest
from pathlib import Path

import numpy as np
from folder_case import FolderTest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(os.environ.get("TOKLINE_BIN_DIR", "")) / "tokline"
MODEL = ROOT / "harness/tests/golden/qwen3_tiny"


def make_wrong(path, name, factor):
    """Multiplies one bf16 tensor of a safetensors file, to the nearest bf16."""
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    low, high = (begin + offset for offset in json.loads(data[8:begin])[name]["data_offsets"])
    bits = np.frombuffer(data[low:high], "<u2").astype("<u4") << 16
    wrong = (bits.view("<f4") * np.float32(factor)).view("<u4")
    data[low:high] = ((wrong + 0x8000) >> 16).astype("<u2").tobytes()
    path.write_bytes(data)


class ParityTest(FolderTest):
    def setUp(self):
        if not PROGRAM.is_file():
            self.skipTest("tokline is not built")
        if subprocess.run(["python3", "-c", "import torch, transformers"], capture_output=True).returncode:
            self.skipTest("the python3 on the path lacks torch or transformers")
        super().setUp()

    def compare(self, program):
        """(exit code, record)"""
        out = self.folder / f"{program.parent.name}.json"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([ROOT / "scripts/maintain/parity", "compare", "--model", MODEL, "--tokline", program, "--device",
                               "cpu", "--prompt-tokens", "40", "--new-tokens", "32", "--out", out],
                              env=environment, capture_output=True, text=True)
        self.assertTrue(out.is_file(), done.stderr)
        return done.returncode, json.loads(out.read_text())

    def test_a_tiny_model_passes_and_an_error_of_2_percent_in_one_projection_does_not(self):
        code, record = self.compare(PROGRAM)
        self.assertEqual((code, record["pass"]), (0, True))
        self.assertTrue(all(seed["smallest"] for seed in record["layers"]["caught"].values()), record["layers"]["caught"])
        # The program is given another checkpoint than transformers.
        wrong = shutil.copytree(MODEL, self.folder / "wrong")
        make_wrong(wrong / "model.safetensors", "model.layers.1.mlp.up_proj.weight", 1.02)
        program = self.program("tokline", f'#!/bin/bash\nexec "{PROGRAM}" "${{@/"{MODEL}"/"{wrong}"}}"\n')
        code, record = self.compare(program)
        self.assertEqual((code, record["pass"]), (1, False))
        above = {place["after"] for place in record["layers"]["places"] if place["ratio"] > record["layers"]["limit"]}
        self.assertEqual(above, {"mlp 1"})


if __name__ == "__main__":
    unittest.main()
