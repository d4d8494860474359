"""scripts/records report; its --help says how it is used."""

import datetime
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tokline import command, records, report, terminal
from tokline.files import check_outputs, write_whole
from tokline.report import markdown, page
from tokline.report.evidence import Evidence
from tokline.report.wording import command_words
from tokline.stop import Stop

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EPILOG = """\
examples:
  scripts/records report results/h200 -o report.html
  scripts/records report build/results -o report.html --markdown comment.md
  scripts/records report pr.jsonl --baseline main.jsonl -o report.html     with what changed, and where
  scripts/records report results/ -o report.html --screenshot report.png   needs Chromium

RESULTS are record files, or folders that are searched for *.jsonl. Of several rows of the same measurement the newest
counts; older ones make the plots over commits. docs/reading_a_report.md explains each part.

exit codes: 0 written, 1 records that cannot be used or a file that cannot be written, 2 misuse, 130 interrupted
"""


def parse(arguments):
    parser = command.parser(report.__doc__, EPILOG)
    parser.add_argument("results", nargs="+", metavar="RESULTS", help="record files or folders")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the HTML file to write")
    parser.add_argument("--markdown", metavar="FILE", help="also write a short text for a pull-request comment")
    parser.add_argument("--baseline", nargs="+", metavar="FILE", default=[],
                        help="records to compare with: a verdict per row, and what a difference comes from")
    parser.add_argument("--title", default="Tokline report", help="default: %(default)s")
    parser.add_argument("--screenshot", metavar="PNG", help="also take a picture of the top of the page with Chromium")
    return parser.parse_args(arguments)


def check_files(options):
    outputs = [("-o", options.output), ("--markdown", options.markdown), ("--screenshot", options.screenshot)]
    check_outputs(outputs, [*(("RESULTS", path) for path in options.results),
                            *(("--baseline", path) for path in options.baseline)])


def own_command(options):
    words = ["scripts/records", "report", *options.results]
    words += ["--baseline", *options.baseline] if options.baseline else []
    return command_words([*words, "-o", options.output])


def make(options, progress):
    runs = records.read(options.results, terminal.say)
    baseline = records.read(options.baseline, terminal.say) if options.baseline else []
    if not any(run.rows or run.ablations for run in runs):
        raise Stop(f"no row in {' '.join(options.results)}: the runs were cut short before their first row")
    chosen, swept = records.parted(runs)
    evidence = Evidence(chosen, records.parted(baseline)[0], swept)
    generated = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    html = page.render(evidence, options.title, own_command(options), generated, progress.show)
    write_whole(options.output, html)
    if options.markdown:
        write_whole(options.markdown, markdown.render(evidence, options.title, os.path.basename(options.output)))
    if options.screenshot:
        progress.show("taking a picture")
        write_whole(options.screenshot, picture_of(options.output))


def chromium():
    """Chromium's path, or None. TOKLINE_CHROMIUM names one."""
    named = os.environ.get("TOKLINE_CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, CHROMIUM)), None)


def picture_of(path):
    """A PNG of the top of the page."""
    program = chromium()
    if program is None:
        raise Stop(f"no picture: none of {', '.join(CHROMIUM)} is in PATH, and TOKLINE_CHROMIUM names none")
    with tempfile.TemporaryDirectory(prefix="tokline-chromium-", ignore_cleanup_errors=True) as folder:
        picture = Path(folder) / "picture.png"
        try:
            subprocess.run([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                            "--hide-scrollbars", "--no-first-run", f"--user-data-dir={folder}", "--window-size=1400,1100",
                            f"--screenshot={picture}", Path(path).resolve().as_uri()],
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
            return picture.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            raise Stop(f"no picture: {error}") from None


def main(arguments):
    options = parse(arguments)
    check_files(options)
    progress = terminal.Progress()
    try:
        make(options, progress)
    finally:
        progress.clear()
    return 0
