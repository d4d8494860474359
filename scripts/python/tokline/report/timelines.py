"""The plots over commits: tok/s of the decoder, time of each kernel."""

import math

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Affine2D

from tokline.records import lengths
from tokline.report.canvas import FONT, LIMIT, MUTED, PALETTE, SMALL, draw, kernel_look, plain_log
from tokline.report.wording import figure
from tokline.statistics import geometric_mean

MAX_PANELS = 4
STRIP = 66  # pixels for one batch size over commits


def throughput(evidence):
    """tok/s over commits, one strip per batch size, each on its own scale; with one commit, over the batch."""
    if len(evidence.decoder_commits) == 1:
        return over_batch(evidence)
    groups = {}
    for key, entries in evidence.history.items():
        if key.kernel == "decoder" and not next(iter(entries.values())).peer:
            groups.setdefault((key.model, key.dtype, key.implementation, lengths(key._asdict())),
                              []).append((key.batch, entries))
    panels = [(name, sorted(lines, key=lambda line: line[0])) for name, lines in list(groups.items())[:MAX_PANELS]]
    if not panels:
        return None

    def panel_height(lines):
        return 84 + STRIP * len(lines)

    def columns(narrow):
        return 1 if narrow or len(panels) == 1 else 2

    def row_heights(narrow):
        rows = [panels[first:first + columns(narrow)] for first in range(0, len(panels), columns(narrow))]
        return [max(panel_height(lines) for _, lines in row) for row in rows]

    def paint(canvas):
        cell = canvas.width / columns(canvas.narrow)
        tops = [sum(row_heights(canvas.narrow)[:row]) for row in range(len(panels))]
        for number, ((model, dtype, implementation, tokens), lines) in enumerate(panels):
            left, top = cell * (number % columns(canvas.narrow)), tops[number // columns(canvas.narrow)]
            words = f"{model}, {dtype}, {tokens} tokens"
            words += "" if implementation == "cuda" else f", {implementation}"
            # Bold letters are wider than those that `fitted` measures.
            canvas.text(left, top + 12, canvas.fitted(words, 0.9 * (cell - 12), FONT), fontweight="bold", va="center")
            canvas.text(left, top + 29, "tok/s over the batch" + (
                "; each strip has its own scale" if canvas.narrow else
                "; each strip has its own scale, of at least ±5 %"), color=MUTED, fontsize=SMALL, va="center")
            for strip, (batch, entries) in enumerate(lines):
                axes = canvas.axes(left + 52, top + 46 + STRIP * strip, cell - 52 - 104, STRIP - 24)
                paint_strip(axes, evidence.decoder_commits, batch, entries, PALETTE[strip % len(PALETTE)],
                            last=strip + 1 == len(lines))

    return draw("throughput", "Tokens per second of the decoder over commits, by batch size",
                lambda narrow: sum(row_heights(narrow)), paint)


def over_batch(evidence):
    """tok/s, ms per token and the share of the limit, each over the batch; a line for each model and length."""
    lines = [(f"{model}, {dtype}, {tokens} tokens", [entry for entry in entries if entry.ok])
             for (model, dtype, _, tokens), entries in evidence.decoder_groups.items()]
    lines = [line for line in lines if line[1]][:len(PALETTE)]
    plots = [("tok/s over the batch", lambda entry: entry.row["decode_tok_s"]),
             ("ms per token", lambda entry: entry.row["ms_per_token"]), ("% of limit", lambda entry: entry.percent)]
    plots = [(words, value) for words, value in plots if any(value(entry) for _, found in lines for entry in found)]
    batches = sorted({entry.row["batch"] for _, entries in lines for entry in entries})
    ticks = batches[:1]
    for batch in batches[1:]:  # so far apart that their labels do not touch
        ticks += [batch] if batch >= ticks[-1] * max(1.5, (batches[-1] / batches[0]) ** 0.125) else []

    def legend_lines(narrow):
        return math.ceil(len(lines) / (1 if narrow else 3))

    def height(narrow):
        return 270 * (len(plots) if narrow else 1) + 20 * legend_lines(narrow)

    def paint(canvas):
        cell = canvas.width if canvas.narrow else canvas.width / len(plots)
        for number, (words, value) in enumerate(plots):
            left, top = (0, 270 * number) if canvas.narrow else (cell * number, 0)
            canvas.text(left, top + 12, words, fontweight="bold", va="center")
            axes = canvas.axes(left + 42, top + 30, cell - 60, 190)
            axes.set_xscale("log", base=2)
            axes.margins(x=0.06)
            for colour, (label, entries) in zip(PALETTE, lines):
                points = [(entry.row["batch"], value(entry)) for entry in entries if value(entry)]
                axes.plot([batch for batch, _ in points], [y for _, y in points], color=colour, linewidth=1.6,
                          marker="o", markersize=4.5, label=label)
            if "%" in words:
                axes.set_ylim(0, 105)
                axes.axhline(100, color=LIMIT, linewidth=1.2)
            else:
                axes.set_yscale("log")
                low, high = axes.get_ylim()
                plain_log(axes.yaxis, subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,))
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda batch, _: f"{batch:g}"))
            axes.set_xlabel("batch")
            axes.grid(True)
        canvas.figure.legend(*axes.get_legend_handles_labels(), loc="lower left", ncol=1 if canvas.narrow else 3,
                             bbox_to_anchor=(0.0, 0.0), columnspacing=1.2, borderaxespad=0.1)

    return draw("throughput", "Tokens per second, ms per token and share of the limit of the decoder, over the batch",
                height, paint)


def paint_strip(axes, commits, batch, entries, colour, last):
    """One batch size over commits: the line, its band, and at the right what it is now."""
    xs = [commits.index(label) for label in entries]
    rates = [entry.row["decode_tok_s"] for entry in entries.values()]
    lows, highs = zip(*(entry.tok_s_interval for entry in entries.values()))
    middle = math.sqrt(min(lows) * max(highs))
    low, high = min(0.95 * middle, min(lows)), max(1.05 * middle, max(highs))
    axes.fill_between(xs, lows, highs, color=colour, alpha=0.28, linewidth=0)
    axes.plot(xs, rates, color=colour, linewidth=1.6, marker="o", markersize=3.5, solid_joinstyle="round")
    if len(xs) == 1:
        axes.vlines(xs, lows, highs, color=colour, linewidth=1.2)
    axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    axes.set_xlim(-0.4, len(commits) - 0.6)
    axes.yaxis.set_major_locator(FixedLocator([low, high]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: figure(value)))
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="y")
    if last:
        commit_ticks(axes, commits)
    else:
        axes.spines["bottom"].set_visible(False)
        axes.xaxis.set_major_locator(NullLocator())
    axes.annotate(f"batch {batch}", (1, 0.5), xycoords="axes fraction", xytext=(10, 7), va="center",
                  textcoords="offset points", fontsize=SMALL, color=MUTED)
    now = f"{rates[-1]:,.0f}" if rates[-1] >= 100 else figure(rates[-1])
    change = f" {100 * (rates[-1] / rates[-2] - 1):+.1f} %".replace("-", "−") if len(rates) > 1 else ""
    axes.annotate(now + change, (1, 0.5), xycoords="axes fraction", xytext=(10, -8), va="center",
                  textcoords="offset points", fontsize=SMALL)


def offset(axes, up):
    """The transform of pixels from the axes' left edge, `up` pixels above their top."""
    box = axes.get_window_extent()
    return Affine2D().translate(box.x0, box.y1 + up)


def commit_ticks(axes, commits, room=58):
    """Names as many commits as have room, always the first and the last."""
    width = axes.get_window_extent().width
    fit = max(1, int(width // room))
    stride = max(1, math.ceil((len(commits) - 1) / max(1, fit - 1))) if fit > 1 else len(commits)
    last = len(commits) - 1
    ticks = [tick for tick in range(0, len(commits), stride) if last - tick >= stride or tick == last] + [last]
    if fit == 1:
        ticks = [last]
    ticks = sorted(set(ticks))
    axes.set_xticks(ticks, [commits[tick] for tick in ticks])
    if len(ticks) > 1:  # the outer ones end with the axes
        axes.get_xticklabels()[0].set_horizontalalignment("left")
        axes.get_xticklabels()[-1].set_horizontalalignment("right")


def kernel_history(evidence):
    """One small plot per kernel: its time divided by that at the first commit."""
    panels = [(kernel, evidence.kernel_history(kernel)) for kernel in evidence.kernels]
    panels = [(kernel, lines) for kernel, lines in panels if lines]
    if not panels:
        return None
    values = [value for _, lines in panels for line in lines.values() for _, value in line]
    low, high = min(0.9, min(values)) / 1.02, max(1.1, max(values)) * 1.02
    commits = evidence.kernel_commits

    def height(narrow):
        return 150 * math.ceil(len(panels) / (2 if narrow else 4))

    def paint(canvas):
        columns = 2 if canvas.narrow else 4
        cell = canvas.width / columns
        for number, (kernel, lines) in enumerate(panels):
            axes = canvas.axes(cell * (number % columns) + 36, 150 * (number // columns) + 24, cell - 48, 92)
            colour, _ = kernel_look(kernel)
            axes.set_yscale("log")
            axes.set_xlim(-0.4, len(commits) - 0.6)
            axes.set_ylim(low, high)
            axes.axhline(1, color=LIMIT, linewidth=1)
            means = {}
            for line in lines.values():
                axes.plot([commits.index(label) for label, _ in line], [value for _, value in line], color=colour,
                          linewidth=0.9, alpha=0.35)
                for label, value in line:
                    means.setdefault(commits.index(label), []).append(value)
            xs = sorted(means)
            axes.plot(xs, [geometric_mean(means[x]) for x in xs], color=colour, linewidth=2.2, marker="o",
                      markersize=3.5)
            span = math.log2(high / low)
            steps = [0.25, 0.5, 1, 2, 4] if span > 1.2 else [0.8, 1, 1.25] if span > 0.5 else [0.9, 1, 1.1]
            axes.yaxis.set_major_locator(FixedLocator([value for value in steps if low <= value <= high]))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
            axes.grid(True, axis="y")
            commit_ticks(axes, commits)
            axes.text(-30, 0, kernel, transform=offset(axes, 7), fontweight="bold", va="bottom")

    return draw("history", "Time of each kernel over commits, relative to the first", height, paint)
