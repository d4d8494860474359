"""The plots of how fast and how near the limit: roofline, shares of the limit, what each op is worth.

Each takes the evidence and returns a Drawing, or None if there is nothing to draw.
"""

import math

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from tokline import records
from tokline.report.canvas import (BAD, FONT, GOOD, GRID, INK, LIMIT, MUTED, PALETTE, SMALL, SURFACE, draw,
                                   kernel_look, place_labels, plain_log)
from tokline.report.evidence import LONG_FLOOR_US
from tokline.report.wording import compact, figure, microseconds, percent, ratio

MAX_ROWS_A_KERNEL = 6


def roofline(evidence):
    """Every kernel's rows under the rates that the device was measured to reach."""
    run = evidence.peaks_run
    rows = evidence.representatives
    if run is None or not rows:
        return None
    peaks, sheet = run.header["peaks"], run.header["datasheet"] or {}
    matmul, sheet_matmul = peaks.get("matmul_tflops"), sheet.get("bf16_tflops")
    read, sheet_read = peaks["read_gbps"], sheet.get("memory_gbps")
    intensities = [entry.row["cost"]["flops"] / entry.bytes for entry in rows if entry.row["cost"]["flops"]]
    first = 10 ** math.floor(math.log10(min(intensities, default=1.0)))
    last = 2 * max([*intensities, 1e3])
    nowhere = first / 5  # the place of rows without arithmetic

    def place(entry):
        """(FLOP/byte, TFLOP/s); without arithmetic at `nowhere`, as far below the roof as the row is."""
        intensity = entry.row["cost"]["flops"] / entry.bytes
        if not intensity:
            return nowhere, nowhere * entry.row["gbps"] / 1e3
        return intensity, entry.row["tflops"]

    def title(entry):
        share = "" if entry.peer else f", {percent(entry.percent)} of the {entry.row['limit']} limit"
        return (f"{entry.kernel} {entry.name}, {entry.peer or entry.how}: {microseconds(entry.median_us)}, "
                f"{entry.rate}{share}")

    peers = [peer for peer in map(evidence.peer, rows) if peer is not None]
    groups = [(kernel, [entry for entry in rows if entry.kernel == kernel]) for kernel in evidence.kernels]
    groups = [(kernel, found) for kernel, found in groups if found]

    def legend_lines(narrow):
        return math.ceil((len(groups) + bool(peers)) / (2 if narrow else 6))

    def height(narrow):
        return (380 if narrow else 505) + 20 * legend_lines(narrow)

    def paint(canvas):
        left = 46 if canvas.narrow else 56
        axes = canvas.axes(left, 30, canvas.width - left - 14, canvas.height - 80 - 20 * legend_lines(canvas.narrow))
        axes.set_xscale("log")
        axes.set_yscale("log")
        points = [place(entry) for entry in [*rows, *peers]]
        ceiling = max(filter(None, (matmul, sheet_matmul, read * last / 1e3 if not matmul else None)))
        axes.set_xlim(nowhere / 1.8, last)
        axes.set_ylim(min(y for _, y in points) / 2, ceiling * 2.8)

        def roof(gbps, tflops, **style):
            xs = [nowhere / 1.8, last]
            if tflops:
                xs.insert(1, 1e3 * tflops / gbps)
            axes.plot(xs, [min(x * gbps / 1e3, tflops or math.inf) for x in xs], **style)

            return [(x, min(x * gbps / 1e3, tflops or math.inf))
                    for x in (xs[0] * (last / xs[0]) ** (step / 60) for step in range(61))]

        if sheet_read:
            roof(sheet_read, sheet_matmul, color=LIMIT, linewidth=1.2, alpha=0.5, linestyle=(0, (4, 3)))
        line = roof(read, matmul, color=LIMIT, linewidth=1.8)
        axes.axvspan(nowhere / 1.8, nowhere * 1.8, facecolor=GRID, alpha=0.35, linewidth=0)
        plain_log(axes.xaxis)
        decades = range(math.ceil(math.log10(first)), math.floor(math.log10(last)) + 1)
        ticks = [nowhere, *[10.0 ** power for power in decades]]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FuncFormatter(
            lambda value, _: "none" if value == nowhere else compact(round(value, 6))))
        plain_log(axes.yaxis)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(True, which="major")
        axes.set_xlabel("arithmetic intensity, FLOP per byte that must move")
        axes.set_title("TFLOP/s" + ("" if canvas.narrow else " (higher is faster; nothing runs above the line)"))
        titles = {}
        for kernel, entries in groups:
            colour, marker = kernel_look(kernel)
            xs, ys = zip(*map(place, entries))
            titles[f"roof_{kernel}"] = [title(entry) for entry in entries]
            axes.scatter(xs, ys, s=42, marker=marker, color=colour, edgecolor=SURFACE, linewidth=0.6,
                         gid=f"roof_{kernel}", zorder=4)
            found = [evidence.peer(entry) for entry in entries if evidence.peer(entry)]
            if found:
                xs, ys = zip(*map(place, found))
                titles[f"roofpeer_{kernel}"] = [title(entry) for entry in found]
                axes.scatter(xs, ys, s=42, marker=marker, facecolor="none", edgecolor=colour, linewidth=1.1,
                             gid=f"roofpeer_{kernel}", zorder=3)
        label_roofs(canvas, axes, read, matmul, sheet_matmul, last)
        place_labels(canvas, axes,
                     [(*place(entry), f"{entry.kernel} {percent(entry.percent)}") for entry in
                      [entry for entry in evidence.furthest if entry.floor_us >= LONG_FLOOR_US][:3]],
                     points + line, color=INK)
        handles = [Line2D([], [], linestyle="none", marker=kernel_look(kernel)[1], markersize=6.5,
                          color=kernel_look(kernel)[0], markeredgecolor=SURFACE, markeredgewidth=0.5, label=kernel)
                   for kernel, _ in groups]
        if peers:
            handles.append(Line2D([], [], linestyle="none", marker="o", markersize=6, markerfacecolor="none",
                                  color=INK, label="hollow: best peer"))
        canvas.figure.legend(handles=handles, loc="lower left", ncol=2 if canvas.narrow else 6,
                             bbox_to_anchor=(0.0, 0.0), handletextpad=0.2, columnspacing=1.2, borderaxespad=0.1)
        return titles

    return draw("roofline", "Roofline: rate of every kernel against its arithmetic intensity, below the measured "
                "read and matmul peaks", height, paint)


def label_roofs(canvas, axes, read, matmul, sheet_matmul, last):
    """Says above the roof what its two parts are, where nothing else is."""
    if matmul:
        words = f"matmul {figure(matmul)} TFLOP/s"
        axes.annotate(words + (f"\ndatasheet {figure(sheet_matmul)}" if sheet_matmul else ""),
                      (last, max(matmul, sheet_matmul or 0)), xytext=(0, 5), textcoords="offset points",
                      ha="right", va="bottom", fontsize=SMALL, color=MUTED, linespacing=1.15)
    x = 3.0 if canvas.narrow else 2.0
    axes.annotate(f"read {figure(read)} GB/s", (x, read * x / 1e3), xytext=(-8, 6), textcoords="offset points",
                  ha="right", va="bottom", fontsize=SMALL, color=MUTED)


def shares(evidence):
    """% of limit, one line per shape, ours beside the best peer."""
    groups = [(kernel, evidence.long_rows(kernel)[:MAX_ROWS_A_KERNEL])
              for kernel in [entry.kernel for entry in evidence.furthest]]
    if not groups:
        return None
    total = sum(len(entries) for _, entries in groups)

    def step(narrow):
        return 31 if narrow else 20

    def height(narrow):
        return 62 + 30 * len(groups) + step(narrow) * total

    def paint(canvas):
        left, right = (12, 46) if canvas.narrow else (330, 60)
        span = canvas.width - left - right
        axes = canvas.axes(left, 24, span, canvas.height - 62)
        largest = max(max(entry.percent, peer_percent(evidence, entry) or 0)
                      for _, entries in groups for entry in entries)
        axes.set_xlim(0, max(105, 1.05 * largest))
        axes.set_ylim(canvas.height - 62, 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.grid(True, axis="x")
        axes.axvline(100, color=LIMIT, linewidth=1.6)
        canvas.text(left + span * 100 / axes.get_xlim()[1], 19, "the limit", ha="center", va="bottom",
                    fontsize=SMALL, color=MUTED)
        has_peers = any(evidence.peer(entry) for _, entries in groups for entry in entries)
        if has_peers:
            canvas.legend([Line2D([], [], linestyle="none", marker="o", markersize=7, color=INK, label="Tokline"),
                            Line2D([], [], linestyle="none", marker="o", markersize=7, markerfacecolor="none",
                                   color=INK, label="best peer")])
        y = 0.0
        for kernel, entries in groups:
            y += 20
            colour, _ = kernel_look(kernel)
            canvas.text(left if canvas.narrow else 8, 24 + y, kernel, va="center", fontweight="bold")
            y += 10
            for entry in entries:
                line = y + (step(canvas.narrow) - 9 if canvas.narrow else step(canvas.narrow) / 2)
                label = canvas.fitted(entry.name, 0.92 * span if canvas.narrow else left - 26)
                if canvas.narrow:
                    axes.text(0, y + 9, label, va="center", ha="left", fontsize=SMALL, color=MUTED)
                else:
                    canvas.text(left - 10, 24 + line, label, va="center", ha="right", fontsize=SMALL)
                peer = peer_percent(evidence, entry)
                axes.plot([0, entry.percent], [line, line], color=colour, linewidth=3, alpha=0.35,
                          solid_capstyle="butt")
                if peer is not None:
                    axes.plot([peer], [line], "o", markersize=7, markerfacecolor="none", color=INK,
                              markeredgewidth=1.1, zorder=5)
                axes.plot([entry.percent], [line], "o", markersize=7, color=colour, zorder=4)
                axes.text(1.01, line, f"{percent(entry.percent)}", transform=axes.get_yaxis_transform(),
                          va="center", ha="left", fontsize=SMALL)
                y += step(canvas.narrow)

    return draw("shares", "Percent of the limit that each kernel reaches on its longer cold shapes, beside the best "
                "peer", height, paint)


def peer_percent(evidence, entry):
    """The best peer's share of the same floor."""
    peer = evidence.peer(entry)
    return 100 * entry.floor_us / peer.median_us if peer else None


def sweep(found):
    """One plot per kernel of drawn shapes: time over floor, over the bytes or the operations of a launch."""
    if not found:
        return None
    step = 190

    def columns(narrow):
        return 1 if narrow else 3

    def height(narrow):
        return step * math.ceil(len(found) / columns(narrow)) + 10

    def paint(canvas):
        width, titles = canvas.width / columns(canvas.narrow), {}
        for number, (kernel, points) in enumerate(found.items()):
            row, column = divmod(number, columns(canvas.narrow))
            axes = canvas.axes(column * width + 40, row * step + 30, width - 56, step - 80)
            axes.set_xscale("log")
            axes.set_yscale("log")
            by_operations = 2 * sum(point.is_matmul for point in points) > len(points)
            xs = [max(1.0, point.entry.row["cost"]["flops"] if by_operations else point.entry.bytes)
                  for point in points]
            colour, marker = kernel_look(kernel)
            axes.scatter(xs, [point.ratio for point in points], s=24, marker=marker, color=colour, edgecolor=SURFACE,
                         linewidth=0.4, gid=f"sweep_{kernel}", zorder=4)
            axes.axhline(1, color=LIMIT, linewidth=1.4)
            axes.set_ylim(0.9, 1.15 * max(2.0, *(point.ratio for point in points)))
            plain_log(axes.xaxis)
            axes.xaxis.get_major_locator().set_params(numticks=5)
            plain_log(axes.yaxis, subs=(1.0, 2.0, 5.0))
            axes.grid(True, axis="y")
            axes.set_xlabel("operations" if by_operations else "bytes")
            axes.set_title(f"{kernel}, time / floor")
            titles[f"sweep_{kernel}"] = [
                f"{point.name}: {microseconds(point.entry.median_us)}, {ratio(point.ratio)} its floor"
                for point in points]
        return titles

    return draw("sweep", "Time over floor of drawn shapes, over what a launch moves or computes, per kernel", height,
                paint)


def ablation(evidence):
    """Speed-up alone beside speed-up in the decoder, one pair per line."""
    found = evidence.ablations
    if not found:
        return None
    ends = [value for one in found for speedup in (one.digest.end_to_end, one.digest.isolated) if speedup
            for value in (speedup.low, speedup.ratio, speedup.high)]
    low, high = min(0.95, min(ends)), max(1.05, max(ends))

    def step(narrow):
        return 44 if narrow else 34

    def height(narrow):
        return 78 + step(narrow) * len(found)

    def paint(canvas):
        left, right = (8, 50) if canvas.narrow else (200, 60)
        axes = canvas.axes(left, 34, canvas.width - left - right, step(canvas.narrow) * len(found))
        axes.set_xscale("log")
        axes.set_xlim(low / 1.03, high * 1.03)
        axes.set_ylim(step(canvas.narrow) * len(found), 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        wanted = [0.25, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16] if high / low > 1.35 else \
            [0.8, 0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.25]
        kept = []
        for value in [value for value in wanted if low / 1.03 <= value <= high * 1.03]:
            if not kept or axes.transData.transform((value, 0))[0] - axes.transData.transform(
                    (kept[-1], 0))[0] > 44 or value == 1:
                kept = [other for other in kept if value != 1 or axes.transData.transform((1, 0))[0]
                        - axes.transData.transform((other, 0))[0] > 44] + [value]
        axes.xaxis.set_major_locator(FixedLocator(kept))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.grid(True, axis="x")
        axes.axvline(1, color=LIMIT, linewidth=1.6)
        axes.set_xlabel("speed-up by the op" + ("" if canvas.narrow else "; right of 1× it helps"))
        canvas.legend([Patch(facecolor=GOOD, edgecolor=GOOD, label="in the decoder"),
                        Patch(facecolor="none", edgecolor=GOOD, label="alone")])
        for number, one in enumerate(found):
            top = step(canvas.narrow) * number
            middle = top + (30 if canvas.narrow else 17)
            if canvas.narrow:
                axes.text(0.0, top + 9, one.name, transform=axes.get_yaxis_transform(), va="center",
                          fontsize=SMALL, bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1})
            else:
                canvas.text(left - 10, 34 + middle, canvas.fitted(one.name, left - 14), va="center", ha="right",
                            fontsize=SMALL)
            for shift, speedup, filled in ((-5.5, one.digest.end_to_end, True), (5.5, one.digest.isolated, False)):
                if speedup is None:
                    continue
                value = speedup.ratio
                colour = MUTED if one.digest.is_control else GOOD if value >= 1 else BAD
                axes.barh(middle + shift, value - 1, left=1, height=8, linewidth=1.1, edgecolor=colour,
                          facecolor=colour if filled else "none")
                if speedup.has_interval:
                    axes.plot([speedup.low, speedup.high], [middle + shift] * 2, color=INK, linewidth=1.1)
                axes.text(1.02, middle + shift * 1.2, ratio(value), transform=axes.get_yaxis_transform(),
                          va="center", fontsize=SMALL, color=INK if filled else MUTED)

    return draw("ablation", "Speed-up by each op, alone and in the decoder", height, paint)


def workloads(evidence):
    """Three plots with one line per workload: output tok/s, and how long requests waited for tokens."""
    swept = {id(entry) for entries in evidence.rate_sweeps.values() for entry in entries}
    rows = [entry for entry in evidence.ours(records.WORKLOAD) if entry.ok and id(entry) not in swept]
    if not rows:
        return None
    plots = (("output tok/s", paint_rate), ("ms to the first token", lambda axes, entry, y: paint_latency(
        axes, entry.row["first_token_ms"], y)), ("ms between tokens", lambda axes, entry, y: paint_latency(
            axes, entry.row["between_tokens_ms"], y)))
    step, head, foot = 44, 30, 30

    def height(narrow):
        return (head + foot + step * len(rows)) * (len(plots) if narrow else 1)

    def paint(canvas):
        width = canvas.width if canvas.narrow else canvas.width / len(plots)
        for number, (words, paint_one) in enumerate(plots):
            left = 0 if canvas.narrow else width * number
            top = number * height(False) if canvas.narrow else 0
            canvas.text(left + 12, top + 12, words, va="center", fontweight="bold")
            axes = canvas.axes(left + 12, top + head, width - 82, step * len(rows))
            axes.set_ylim(step * len(rows), 0)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.grid(True, axis="x")
            for line, entry in enumerate(rows):
                canvas.text(left + 12, top + head + step * line + 12, canvas.fitted(evidence.workload_names[id(entry)], width - 28),
                            va="center", fontsize=SMALL)
                paint_one(axes, entry, step * line + 30)
            if number == 0:
                axes.set_xlim(0, 1.05 * max(entry.tok_s_interval[1] for entry in rows))
                axes.xaxis.set_major_locator(MaxNLocator(4))
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            else:
                axes.set_xscale("log")
                axes.margins(x=0.08)
                low, high = axes.get_xlim()
                plain_log(axes.xaxis, subs=(1.0, 2.0, 5.0) if high / low < 50 else (1.0,))

    return draw("workloads", "Output tokens per second and latencies of each workload", height, paint)


def rates(evidence):
    """What a service does as requests come faster: throughput, latencies and goodput over the rate."""
    sweeps = list(evidence.rate_sweeps.items())[:len(PALETTE)]
    if not sweeps:
        return None
    places = sorted({float(entry.row["shape"]["rate"]) for _, entries in sweeps for entry in entries})
    plots = [("output tok/s", [("", lambda row: row["output_tok_s"])])]
    plots += [(words, [("median", lambda row, name=name: (row[name] or {}).get("median")),
                       ("p99", lambda row, name=name: (row[name] or {}).get("p99"))])
              for words, name in (("ms to the first token", "first_token_ms"), ("ms between tokens", "between_tokens_ms"))]
    if any("slo" in entry.row for _, entries in sweeps for entry in entries):
        plots.append(("requests per second that met their bound", [("", lambda row: row.get("goodput_req_s"))]))
    cell_height, foot = 250, 22

    def columns(narrow):
        return 1 if narrow else 2

    def height(narrow):
        return cell_height * math.ceil(len(plots) / columns(narrow)) + foot * (1 + len(sweeps))

    def paint(canvas):
        cell = canvas.width / columns(canvas.narrow)
        for number, (words, lines) in enumerate(plots):
            left, top = cell * (number % columns(canvas.narrow)), cell_height * (number // columns(canvas.narrow))
            canvas.text(left, top + 12, words, fontweight="bold", va="center")
            axes = canvas.axes(left + 46, top + 30, cell - 66, cell_height - 84)
            for colour, (_, entries) in zip(PALETTE, sweeps):
                for style, (_, value) in zip(("-", "--"), lines):
                    points = [(places.index(float(entry.row["shape"]["rate"])), value(entry.row)) for entry in entries]
                    points = [point for point in points if point[1] is not None]
                    axes.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.6, linestyle=style,
                              marker="o", markersize=4.5)
            axes.set_xticks(range(len(places)), ["∞" if math.isinf(rate) else compact(rate) for rate in places])
            axes.margins(x=0.06)
            if len(lines) > 1:
                axes.set_yscale("log")
                low, high = axes.get_ylim()
                plain_log(axes.yaxis, subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,))
            else:
                axes.set_ylim(bottom=0)
                axes.yaxis.set_major_locator(MaxNLocator(5))
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
            axes.set_xlabel("requests that arrive per second")
            axes.grid(True)
        handles = [Line2D([], [], color=colour, linewidth=1.6, label=canvas.fitted(name, canvas.width - 50, FONT))
                   for colour, (name, _) in zip(PALETTE, sweeps)]
        handles.append(Line2D([], [], color=MUTED, linewidth=1.6, linestyle="--", label="dashed: p99, where it is known"))
        canvas.figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 0.0), borderaxespad=0.1)

    return draw("rates", "Output tokens per second, latencies and goodput of workloads over the rate of requests", height,
                paint)


def beside(axes, y, words):
    axes.text(1.02, y, words, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL)


def paint_rate(axes, entry, y):
    rate = entry.row["output_tok_s"]
    axes.barh(y, rate, height=10, color=GOOD, linewidth=0)
    axes.plot(entry.tok_s_interval, [y] * 2, color=INK, linewidth=1.1)
    beside(axes, y, f"{rate:,.0f}")


def paint_latency(axes, latency, y):
    if not latency:  # requests for one token each have nothing between tokens
        return
    median, *above = (latency[name] for name in records.PERCENTILES if latency[name] is not None)
    axes.plot([median, *above], [y] * (1 + len(above)), color=GOOD, linewidth=1.1)
    axes.plot([median], [y], color=GOOD, marker="o", markersize=7)
    axes.plot(above, [y] * len(above), color=GOOD, marker="o", markersize=6, markerfacecolor=SURFACE, linestyle="none")
    beside(axes, y, figure(median))
