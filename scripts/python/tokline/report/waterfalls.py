"""Waterfalls: where the time of a decode step goes, and what a difference of two steps comes from."""

from matplotlib.ticker import FuncFormatter

from tokline import blame
from tokline.report.canvas import ACCENT, BAD, FONT, GOOD, INK, LIMIT, MUTED, SMALL, draw
from tokline.report.wording import figure, percent


def bars(canvas, top, title, lines, unit_text, note="", reference=None):
    """A horizontal waterfall in its own axes: lines are (label, start, end, colour, words at its end).

    Returns the pixels that it took. `reference` is a start value that a thin line marks.
    """
    left, right = (118, 96) if canvas.narrow else (170, 150)
    pitch = 20
    canvas.text(0, top + 12, title, fontweight="bold", va="center")
    if note:
        canvas.text(0, top + 28, note, color=MUTED, fontsize=SMALL, va="center")
    axes = canvas.axes(left, top + 40, canvas.width - left - right, pitch * len(lines))
    values = [value for _, start, end, _, _ in lines for value in (start, end)]
    low, high = min(values), max(values)
    margin = 0.02 * (high - low) or 1.0
    axes.set_xlim(low if low == 0 else low - margin, high + margin)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [canvas.fitted(label, left - 8) for label, *_ in lines])
    axes.grid(True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.xaxis.get_major_locator().set_params(nbins=4 if canvas.narrow else 7)
    axes.set_xlabel(unit_text)
    if reference is not None:
        axes.axvline(reference, color=LIMIT, linewidth=1)
    for number, (_, start, end, colour, words) in enumerate(lines):
        axes.barh(number, end - start, left=start, height=0.66, color=colour, linewidth=0)
        if start == end:
            axes.plot([start, start], [number - 0.33, number + 0.33], color=colour, linewidth=1.2)
        if number + 1 < len(lines):
            axes.plot([end, end], [number + 0.33, number + 0.67], color=MUTED, linewidth=0.8)
        axes.annotate(words, (1, number), xycoords=("axes fraction", "data"), xytext=(8, 0),
                      textcoords="offset points", va="center", ha="left", fontsize=SMALL)
    return bars_height(len(lines))


def bars_height(lines):
    return 40 + 20 * lines + 54


def step_waterfall(evidence):
    """Where the time of a decode step goes: ops in order, then the gaps and what is unexplained."""
    panels = []
    for entry in evidence.profiled:
        profile = entry.row["profile"]
        step, at, lines = profile["step_us"], 0.0, []
        parts = []
        for op in profile["ops"]:
            launches = f" ×{op['launches']}" if op.get("launches", 1) > 1 else ""
            parts += [(f"{phase['phase']} in {op['op']}", phase["us"], "", ACCENT) for phase in op.get("phases", ())] \
                or [(op["op"], op["us"], launches, ACCENT)]
        parts.append(("device gap", profile["device_gap_us"], "", MUTED))
        parts.append(("host gap", profile["host_gap_us"], "", BAD))
        for name in ("tracing", "unexplained"):
            if f"{name}_us" in profile:
                parts.append((name, profile[f"{name}_us"], "", MUTED))
        for label, us, launches, colour in parts:
            lines.append((label + launches, at, at + us, colour, f"{figure(us)} µs · {percent(100 * us / step)}"))
            at += us
        panels.append((f"{entry.row['model']}, batch {entry.row['batch']}: {figure(step)} µs a step",
                       f"by {profile['method']}, mean of {profile['steps']} steps, whose profiling costs time too: "
                       f"{figure(1e3 * entry.row['ms_per_token'])} µs without", lines))
    if not panels:
        return None
    return stacked("step", "A decode step split into its kernels and gaps", panels, "µs from the start of the step",
                   [None] * len(panels))


def stacked(name, alternative, panels, unit_text, references):
    def height(narrow):
        return sum(bars_height(len(lines)) for _, _, lines in panels)

    def paint(canvas):
        top = 0
        for (title, note, lines), reference in zip(panels, references):
            top += bars(canvas, top, canvas.fitted(title, canvas.width - 4, FONT, "bold"), lines, unit_text,
                        canvas.fitted(note, canvas.width - 4), reference)

    return draw(name, alternative, height, paint)


def blame_waterfall(evidence):
    """What a step gained or lost in each part, from A to B."""
    _, differences = evidence.differences
    panels, references = [], []
    for difference in differences:
        at = difference.a.step_us
        lines = [("A", at, at, INK, f"{figure(at)} µs")]
        for part in blame.lines_of(difference):
            end = at + part.change_us
            lines.append((blame.GAPS.get(part.name, part.name), at, end, BAD if part.change_us > 0 else GOOD,
                          f"{part.change_us:+,.1f} µs".replace("-", "−")))
            at = end
        at = difference.b.step_us
        lines.append(("B", at, at, INK, f"{figure(at)} µs"))
        panels.append((difference.label.split(",")[0],
                       f"{difference.a.tok_s:,.0f} → {difference.b.tok_s:,.0f} tok/s "
                       f"({difference.percent:+.1f} %), a step {difference.change_us:+,.1f} µs", lines))
        references.append(difference.a.step_us)
    if not panels:
        return None
    return stacked("blame", "The difference of a decode step between two runs, split into kernels and gaps", panels,
                   "µs of a step (orange: longer, green: shorter)", references)
