"""Prints the tables of recorded runs: of kernels, of the decoder and of workloads, and what was not run.
Standard library only."""
import collections
import json

from tokline import kernels, records
from tokline.command import parser
from tokline.records import shape_label
from tokline.terminal import colour_wanted, count, figure, markdown_table, say, text_table, wrapped, write_out


# The columns of figures that are aligned to the right in text.
RIGHT = {"median µs", "± %", "rate", "% of limit", "of best peer"}


def rate(row):
    if row.get("limit") == "matmul":
        return figure(row["tflops"]) + " TFLOP/s"
    return figure(row["gbps"]) + " GB/s"


def share(row):
    """How near a row is to its limit, and which that is."""
    percent = row.get("percent_of_measured_peak")
    wrong = ", a wrong limit" if row.get("limit_is_wrong") else ""
    return "" if percent is None else f"{percent:.0f} % {row['limit']}{wrong}"


def spread(row):
    """Half of the median's 95 % interval, in percent of it."""
    low, high = row["ci95_us"]
    return f"{50 * (high - low) / row['median_us']:.2f}"


def name_of(row):
    name = ("peer " if row["library"] else "") + row["implementation"]
    return name + (", dependent" if row["chain"] == "dependent" else "")


def kernel_table(rows):
    """Rows of one kernel, each shape's peers below it, fastest first."""
    header = ["shape", "implementation", "dtype", "cache", "median µs", "± %", "rate", "% of limit", "verified"]
    has_peers = any(row["library"] for row in rows)
    if has_peers:
        header.append("of best peer")
    lines = []
    by_shape = {}
    for row in rows:
        by_shape.setdefault(json.dumps(row["shape"], sort_keys=True), []).append(row)
    for shape_rows in by_shape.values():
        peers = sorted((row for row in shape_rows if row["library"] and row["status"] == "ok"),
                       key=lambda row: row["median_us"])
        best = {}
        for peer in peers:
            best.setdefault(peer["dtype"], peer["median_us"])
        withheld = {row["dtype"] for row in shape_rows if row["library"] and records.may_be_faster(row)}
        for row in [row for row in shape_rows if not row["library"]] + peers:
            line = [shape_label(row["shape"]), name_of(row), row["dtype"], row["cache"]]
            ratio = ""
            if row["status"] == "ok":
                line += [figure(row["median_us"]), spread(row), rate(row), share(row), "yes"]
                if row["dtype"] in withheld:
                    ratio = "a faster one was refused"
                elif row["dtype"] in best:
                    ratio = f"{row['median_us'] / best[row['dtype']]:.2f}x"
            else:
                line += ["refused", "", "", "", "no"]
            lines.append(line + ([ratio] if has_peers else []))
    return header, lines


def one_table(tables):
    """The tables of kernels as one, each kernel's name above its rows."""
    header = max((header for _, (header, _) in tables), key=len, default=[])
    lines = []
    for name, (_, rows) in tables:
        lines.append([name])
        lines += [["  " + shape, *rest] for shape, *rest in rows]
    return header, [line + [""] * (len(header) - len(line)) for line in lines]


def kernel_tables(by_kernel, markdown):
    """(title, table) of the kernels' rows, those of each device apart: times and peers of two devices say nothing of each
    other. Text has one table a device."""
    names = sorted(by_kernel.keys() - set(records.WHOLE), key=kernels.order)
    devices = list(dict.fromkeys(row["device"] for name in names for row in by_kernel[name]))
    tables = []
    for device in devices:
        own = {name: [row for row in by_kernel[name] if row["device"] == device] for name in names}
        of_device = [(name, kernel_table(rows)) for name, rows in own.items() if rows]
        if not markdown:
            tables.append((f"kernels on {device}", one_table(of_device)))
        elif len(devices) == 1:
            tables += of_device
        else:
            tables += [(f"{name} on {device}", table) for name, table in of_device]
    return tables


def decoder_table(rows):
    header = ["model", "implementation", "dtype", "device", "batch", "tokens", "prefill tok/s", "decode tok/s",
              "ms a token", "% of limit", "host share", "first token ms (p50, p90, p99)", "between tokens ms",
              "end to end ms", "verified"]
    lines = []
    for row in rows:
        line = [row["model"], row["implementation"], row["dtype"], row["device"], str(row["batch"]),
                records.lengths(row)]
        if row["status"] == "ok":
            line += [figure(row["prefill_tok_s"]), figure(row["decode_tok_s"]), figure(row["ms_per_token"]), share(row),
                     f"{100 * row['host_share']:.1f} %" if "host_share" in row else "",
                     *(latencies(row.get(name)) for name in records.LATENCIES), "yes"]
        else:
            line += ["refused", *[""] * 7, "no"]
        lines.append(line)
    return header, lines


def workload_table(rows):
    header = ["model", "workload", "implementation", "dtype", "device", "output tok/s", "total tok/s", "requests/s",
              "goodput/s", "first token ms (p50, p90, p99)", "between tokens ms", "end to end ms", "KV mean / most", "preempted",
              "reused", "host share", "verified"]
    lines = []
    for row in rows:
        name = ("peer " if row["library"] else "") + row["implementation"]
        line = [row["model"], shape_label(row["shape"]), name, row["dtype"], row["device"]]
        if row["status"] == "ok" and row["library"]:
            line += [figure(row["output_tok_s"]), figure(row["total_tok_s"]), *[""] * 9, "not judged"]
        elif row["status"] == "ok":
            pages = row["kv_pages"]
            line += [figure(row["output_tok_s"]), figure(row["total_tok_s"]),
                     figure(row["shape"]["requests"] / row["total_s"]), figure(row.get("goodput_req_s")),
                     *(latencies(row.get(name)) for name in records.LATENCIES),
                     f"{100 * row['mean_kv_pages'] / pages:.0f} / {100 * row['max_kv_pages'] / pages:.0f} %",
                     f"{row['preemptions']:,}", f"{row['reused_tokens']:,}", f"{100 * row['host_share']:.1f} %", "yes"]
        else:
            line += ["refused", *[""] * 10, "no"]
        lines.append(line)
    return header, lines


def latencies(percentiles):
    """The three percentiles, "-" where there are too few latencies for one; "" where there are none."""
    return ", ".join(figure(percentiles[name]) or "-" for name in records.PERCENTILES) if percentiles else ""


def peaks_table(runs):
    header = ["device", "program", "read GB/s", "2:1 GB/s", "copy GB/s", "matmul TFLOP/s", "launch µs", "graph node µs",
              "datasheet GB/s", "datasheet TFLOP/s"]
    lines = []
    for run in runs:
        peaks, sheet = run.header["peaks"], run.header["datasheet"] or {}
        if not peaks or peaks.get("from_run"):  # taken over: shown where they were measured
            continue
        matmul = peaks.get("matmul_tflops") or None  # 0: not measured by that program
        lines.append([run.gpu.get("name", ""), run.program, figure(peaks["read_gbps"]),
                      figure(peaks.get("two_to_one_gbps") or None), figure(peaks["copy_gbps"]), figure(matmul), figure(peaks.get("launch_us")),
                      figure(peaks.get("graph_node_us")), figure(sheet.get("memory_gbps")),
                      figure(sheet.get("bf16_tflops"))])
    return header, lines


def render(title, header, lines, markdown):
    if markdown:
        yield f"## {title}\n"
        yield from markdown_table(header, lines)
    else:
        yield title
        right = {i for i, name in enumerate(header) if name in RIGHT}
        for line in text_table(header, lines, right=right, wanted=colour_wanted()):
            yield "  " + line
    yield ""


def newest(runs):
    """The newest row of each measurement, in order of the first; and how many others there are. Of a peer's rows one
    that was not measured replaces none, nor does one of a run that was slowed on purpose."""
    def key(row):
        return records.key(row)._replace(cache="")

    latest = {key(row): None for run in runs for row in run.rows}
    for run in sorted(runs, key=lambda run: (run.injected is None, run.time)):
        for row in run.rows:
            if latest[key(row)] is None or not records.is_unmeasured(row):
                latest[key(row)] = row
    return list(latest.values()), sum(len(run.rows) for run in runs) - len(latest)


def refusals(rows):
    """Why rows are refused; of peers a line a reason, for what a library cannot do it cannot do on many shapes."""
    of_peers = collections.Counter()
    for row in rows:
        if row["status"] == "ok":
            continue
        if row["library"]:
            of_peers[row["kernel"], row["implementation"], row.get("reason")] += 1
            continue
        what = row["kernel"] + " " + (shape_label(row["shape"]) if "shape" in row else f"batch {row['batch']}")
        yield f"refused: {what}, {row['implementation']}: {row.get('reason')}"
    for (kernel, name, reason), number in of_peers.items():
        yield f"peer refused: {name}, {count(number, 'row')} of {kernel}: {reason}"


def notes(runs, rows, replaced):
    """What was not run, or does not stand, in plain words."""
    own = [row for row in rows if not row["library"]]
    found = {row["kernel"] for row in own}
    missing = [name for name in [*kernels.names(), records.DECODER] if name not in found]
    if missing:
        yield "not run: " + ", ".join(missing)
    if own and all(row["device"] == "cpu" for row in own):
        yield "every row is the CPU reference: CUDA rows not run"
    yield from refusals(rows)
    for row in rows:
        if records.is_spoilt(row) and row["status"] == "ok":
            what = shape_label(row["shape"]) if "shape" in row else f"batch {row['batch']}"
            yield f"disturbed: {row['kernel']} {what}, {row['implementation']}: {row['disturbed']}"
    for run in runs:
        if run.injected:
            yield f"a run of {run.program} was changed on purpose: {json.dumps(run.injected)}"
        if run.killed:
            yield f"a run of {run.program} was killed before its end"
        elif run.interrupted:
            yield f"a run of {run.program} is unfinished: it was interrupted, or reached its time limit"
        for when, state in (("before", run.gpu.get("before") or {}), ("after", (run.end or {}).get("gpu_after") or {})):
            if state.get("throttled"):
                yield f"the GPU was throttled {when} {run.program}: {state['throttle_reasons']}"
            if state.get("other_processes"):
                yield f"{state['other_processes']} other processes on the GPU {when} {run.program}"
    if replaced:
        yield f"{replaced} other rows of the same measurements are not shown"


def main(argv):
    parsed = parser(
        "Prints the tables of recorded runs: of kernels, of the decoder and of workloads, and what was not run.",
        "example: scripts/records table build/results/*.jsonl --markdown. Rows that scripts/peers wrote stand beside "
        "ours.\nExit codes: 0, 1 for a file that cannot be used or written, 2 for misuse, 130 interrupted.")
    parsed.add_argument("records", nargs="+", metavar="RECORDS.jsonl", help="written by --record")
    parsed.add_argument("--markdown", action="store_true", help="Markdown instead of plain text")
    arguments = parsed.parse_args(argv)
    runs = records.read(arguments.records, say)
    rows, replaced = newest(runs)
    by_kernel = {}
    for row in rows:
        by_kernel.setdefault(row["kernel"], []).append(row)
    tables = kernel_tables(by_kernel, arguments.markdown)
    tables += [(title, table(by_kernel[name])) for title, table, name in
               (("decoder", decoder_table, records.DECODER), ("workloads", workload_table, records.WORKLOAD))
               if name in by_kernel]
    tables.append(("measured peaks", peaks_table(runs)))
    output = [line for title, (header, lines) in tables if lines
              for line in render(title, header, lines, arguments.markdown)]
    output += [wrapped("- " + note) if arguments.markdown else note for note in notes(runs, rows, replaced)]
    write_out("\n".join(output).rstrip("\n"))
    return 0
