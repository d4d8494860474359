"""The page docs/believability.md, from the checks of scripts/maintain/believe report."""
from tokline import blame, terminal
from tokline.believe_benches import most_missed
from tokline.believe_collect import DELAYS, SHORTER, SLOWDOWNS
from tokline.kernels import names as kernel_names

INTRODUCTION = """\
# How far Tokline's numbers can be believed

Made by `scripts/maintain/believe report`; do not edit. A tool that says "slower", or "this kernel", is worth what it
says of programs of which the truth is known. Here equal programs are compared with each other, and programs that were
slowed on purpose with themselves as they are, by the same functions that the `gate` and `blame` of `scripts/records`
use.
"""

MEANINGS = """\
## What the checks are
- **Equal programs (A/A).** Every bench program runs against itself in interleaved rounds, in an order that is drawn
  anew each round. Any row that the gate calls slower, faster or otherwise worse is a false alarm. Rows are the default
  shapes, those of `paged_prefill` with their lengths divided by {shorter} and for `decode_step` those of the CPU, each
  value of their lists for itself, and where a kernel has too few of them larger ones, so many of each kernel that every
  kernel counts alike. Rows that repeat one shape count once. The upper end of the share is that of
  Clopper and Pearson: 300 distinct rows without a false alarm show that it is at most 1 %.
- **Slowed kernels.** `--inject-slowdown {slowdowns}` makes the launches of a program take that many percent longer: by
  more launches of the same kernel, or by a spin beside them where a graph of enough launches would take more than 5 ms.
  The host's clock must find the slowdown in graphs of either kind, beside the same graphs as they are. Caught is what
  the gate calls slower: the U test of all rows together, corrected for their number, and an effect beyond
  {least:g} %, three standard errors of the medians and the noise between equal runs. Called the same, undecided or
  disturbed is a miss. The upper end of the share that is missed, over all rows and by kernel, is that of Clopper and
  Pearson, too: with 24 rows of a kernel, all of them caught, it is still 12 %, and of a kernel that was not collected
  in three rounds nothing is known: with fewer the gate calls nothing slower or faster below {known_run:g} %, so such rows count
  neither here nor for equal programs.
- **Delayed decoder.** `tokline bench` with `--inject-host-delay` between decode steps, or with `--inject-op-delay`
  after each launch of one op, all ops in turn; sizes of {delays} % of a step. One run of each is held against one run
  as it is. Right is `blamed` of `scripts/records blame`: the host gap, or that op. Runs as they are, held against each
  other, must not be blamed on anything.
- **Parts of the waterfall.** What the profiles of two runs say of the ops and gaps must add up to the difference of
  their steps, and that of one run to its step. The steps are measured without a profiler, and the gaps apart from both.
- **Cheats.** Kernels that skip work, remember results, hide from the events or compute something else: each has a test
  that sees its row refused.
- **Independent measurement.** The same launches timed by other code, in another way: no graph, but plain launches that
  queue behind a kernel which holds the stream, between two events. Rows below 100 us, which the pauses between such
  launches would lengthen, are graphs that the host's clock times.
- **The store.** Writers of one record file are killed at random moments. Each line that a writer was told is written
  must be there afterwards, and the file must be readable.
- **Overhead.** A full default run where the programs ran; the gate and the report where this page was made.
"""


def table(header, lines):
    return "\n".join(terminal.markdown_table(header, lines))


def machine_words(machine):
    if not machine:
        return "No run was collected.\n"
    parts = [machine["gpu"]]
    parts += [f"driver {machine['driver']}"] if machine.get("driver") else []
    parts += [f"CUDA {machine['cuda_runtime']}"] if machine.get("cuda_runtime") else []
    parts.append(f"commit {machine['commit'][:12]}" + (" with changes" if machine.get("dirty") == "true" else ""))
    others = "".join(f" Commit {commit[:12]}: {', '.join(programs)}."
                     for commit, programs in machine.get("other_commits", {}).items())
    gpus = machine.get("gpus", 1)
    several = f" {gpus} GPUs of this kind took part." if gpus > 1 else ""
    return f"Collected on {', '.join(parts)}, {machine['time_utc'][:10]}.{others}{several}\n"


def summary(checks):
    met = sum(check.met is True for check in checks)
    missed = sum(check.met is False for check in checks)
    unmeasured = sum(check.met is None for check in checks)
    words = f"{met} of {len(checks)} checks are met"
    words += f", {missed} missed" if missed else ""
    words += f", {unmeasured} not measured" if unmeasured else ""
    return words + ".\n"


def misses(checks, most=12):
    """What was missed, row by row; also single misses of checks that are met."""
    blocks = []
    for check in checks:
        found = check.details.get("misses", [])
        if not found and check.met is not False:
            continue
        title = f"**{check.check}**" + (": not met" if check.met is False else ": met all the same")
        lines = [f"- {title}: {check.measured}; must be {check.must}"]
        lines += [f"  - {words}" for words in found[:most]]
        if len(found) > most:
            lines.append(f"  - and {len(found) - most} more, in the JSON")
        blocks.append("\n".join(lines))
    return "## What was missed\n" + ("\n".join(blocks) if blocks else "Nothing.") + "\n"


def kernels(checks):
    """Of every kernel, how often each slowdown was caught, and what share may be missed, which is all where there are no
    rows."""
    by_size = {percent: check.details.get("kernels", {}) for percent in SLOWDOWNS
               for check in checks if check.id == f"slowdown_{percent}"}
    names = sorted({name for group in by_size.values() for name in group})
    if not names:
        return ""
    names = sorted({*names, *kernel_names()})
    aa = next(check for check in checks if check.id == "aa").details.get("rows_a_kernel", {})
    header = ["kernel", "equal rows"]
    for percent in SLOWDOWNS:
        header += [f"{percent} % caught", "missed at most", "measured as"]
    lines = []
    for name in names:
        line = [name, str(aa.get(name, ""))]
        for percent in SLOWDOWNS:
            group = by_size[percent].get(name)
            line += [f"{group['caught']} of {group['comparisons']}" if group else "not in three rounds",
                     f"{100 * most_missed(group):.0f} %", f"{group['median_percent']:+.2f} %" if group else ""]
        lines.append(line)
    return "## By kernel\n" + table(header, lines) + "\n"


def parts(checks):
    """Of every part of a step, how often a delay of it was blamed on it."""
    lines = []
    for check in checks:
        if check.id in ("host_delay", "op_delay"):
            for name, group in check.details.get("by_part", {}).items():
                lines.append([blame.GAPS.get(name, name), f"{group['right']} of {group['trials']}"])
    return "## By part of a decode step\n" + table(["delayed", "blamed on it"], lines) + "\n" if lines else ""


def replaced(collections):
    """Of every collection that a newer one replaced what it missed, and why it was repeated."""
    lines = [[(each["time_utc"] or "")[:10], (each["commit"] or "")[:12], "; ".join(each["missed"]) or "nothing",
              each["because"] or ""] for each in collections]
    header = ["of", "commit", "missed", "repeated because"]
    return "## Collections that this one replaces\n" + table(header, lines) + "\n" if lines else ""


def page(checks, context):
    lines = [[check.check, check.must, check.measured, check.verdict, check.reproduce] for check in checks]
    aa = next(check for check in checks if check.id == "aa").details
    noise = ""
    if aa.get("median_effect_percent") is not None:
        noise = (f"Equal programs differed by {aa['median_effect_percent']:.2f} % in the median row and by "
                 f"{aa['largest_effect_percent']:.2f} % in the worst.\n")
    left_out = "".join(f"- left out, since its program was cut short, with what it would be compared with: {path}\n"
                       for path in context["left_out"])
    rules = context["rules"]
    meanings = MEANINGS.format(slowdowns=", ".join(map(str, SLOWDOWNS)), delays=", ".join(map(str, DELAYS)),
                               least=rules.least_percent, known_run=rules.known_run_percent,
                               shorter=SHORTER["paged_prefill"])
    blocks = [INTRODUCTION, machine_words(context["machine"]) + summary(checks) + noise + left_out,
              table(["check", "must", "measured", "met", "how to repeat it"], lines) + "\n",
              misses(checks), replaced(context["replaced"]), kernels(checks), parts(checks), meanings,
              "## Repeating it\n```\n"
              "scripts/maintain/believe collect --bin build/bench-cuda/bin --model DIR --out believe\n"
              "scripts/maintain/believe report believe -o docs/believability.md "
              "--json results/h200/believability.json\n"
              "```\n"]
    return terminal.wrapped("\n".join(block for block in blocks if block))
