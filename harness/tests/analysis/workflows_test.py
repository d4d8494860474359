"""The workflows name only scripts that exist and options that their --help knows."""

import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def commands(workflow):
    """The commands of its `run:` steps; each is one line, so that what it does stands in a script."""
    return [line.split("run:", 1)[1].strip() for line in workflow.read_text().splitlines()
            if re.match(r"\s*(- )?run:", line)]


class WorkflowsTest(unittest.TestCase):
    def test_each_script_exists_and_knows_its_options(self):
        scripts = [command for workflow in WORKFLOWS for command in commands(workflow)
                   if command.startswith("scripts/")]
        self.assertGreaterEqual(len(scripts), 5, "the commands of the workflows were not found")
        for command in scripts:
            script, *arguments = command.split()
            verb = arguments[:1] if script == "scripts/records" else []
            with self.subTest(command):
                help_text = subprocess.run([ROOT / script, *verb, "--help"], cwd=ROOT, check=True, text=True,
                                           capture_output=True).stdout
                for option in (argument for argument in arguments if argument.startswith("--")):
                    self.assertRegex(help_text, rf"(?<![-\w]){option}\b")

    def test_each_command_is_one_line_that_runs_no_text_of_a_pull_request(self):
        for workflow in WORKFLOWS:
            for command in commands(workflow):
                with self.subTest(workflow=workflow.name, command=command):
                    self.assertNotIn(command, ("", "|", ">", ">-"))
                    self.assertNotIn("${{", command)

    def test_each_action_is_pinned_and_rights_are_stated(self):
        for workflow in WORKFLOWS:
            text = workflow.read_text()
            with self.subTest(workflow.name):
                self.assertRegex(text, r"(?m)^permissions:\n  contents: read$")
                for action in re.findall(r"uses: (\S+)", text):
                    self.assertRegex(action, r"@(v\d+|[0-9a-f]{40})$")

    def setUp(self):
        text = (ROOT / ".github/workflows/gpu.yml").read_text().partition("\njobs:\n")[2]
        parts = re.split(r"(?m)^  (\w+):\n", text)[1:]
        self.jobs = dict(zip(parts[::2], parts[1::2]))
        self.own = {name: job for name, job in self.jobs.items() if "GPU_RUNNER || '[]'" in job}

    def test_a_gpu_runner_serves_no_fork(self):
        self.assertEqual(set(self.own), {"gate", "nightly"})
        self.assertIn("head.repo.full_name == github.repository", self.own["gate"])
        for job in self.own.values():
            self.assertIn("vars.GPU_RUNNER != ''", job)
            self.assertRegex(job, r"event_name == 'pull_request'|ref == 'refs/heads/main'")

    def test_no_job_on_a_runner_of_ours_can_write_or_keeps_a_token(self):
        for name, job in self.own.items():
            with self.subTest(name):
                self.assertNotIn("permissions:", job)  # those of the workflow: read
                self.assertEqual(job.count("actions/checkout"), job.count("persist-credentials: false"))

    def test_the_job_that_can_write_is_hosted_and_runs_one_script_and_nothing_that_was_built(self):
        writers = {name: job for name, job in self.jobs.items() if "write" in re.sub("#.*", "", job)}
        self.assertEqual(list(writers), ["history"])
        self.assertRegex(writers["history"], r"runs-on: ubuntu-[\d.]+\n")
        runs = re.findall(r"run: (.*)", writers["history"])
        self.assertEqual([run.split()[:2] for run in runs], [["scripts/records", "history"]])

    def test_a_verdict_of_an_earlier_run_is_not_shown(self):
        self.assertLess(self.own["gate"].index("rm -f build/gate/verdict.md"), self.own["gate"].index("gate_change --base"))

    def test_kept_builds_are_not_cleaned_away(self):
        for name, job in self.own.items():
            self.assertEqual(job.count("actions/checkout"), job.count("clean: false"), name)


if __name__ == "__main__":
    unittest.main()
