"""Records in the forms that other tools read: Google Benchmark's JSON, CSV, and CSV for Apache Otava."""
import csv
import io
import json
import os
from dataclasses import dataclass, field

from tokline import records, terminal
from tokline.command import parser
from tokline.files import check_outputs, write_whole
from tokline.stop import Stop

FORMATS = ("google-benchmark", "csv", "otava")

# The columns of the CSV form.
_CSV_RUN = ("time_utc", "commit", "dirty", "run_id", "program", "injected")
_CSV_ROW = ("kernel", "implementation", "library", "library_version", "dtype", "device", "model", "batch",
            "prompt_tokens", "new_tokens", "depth", "shape", "cache", "chain", "status", "reason", "interrupted", "disturbed")
_CSV_FIGURES = ("samples", "median_us", "mad_us", "ci95_low_us", "ci95_high_us", "fresh_us", "gbps", "tflops",
                "decode_tok_s", "prefill_tok_s", "limit", "floor_us", "percent_of_measured_peak",
                "percent_of_datasheet_peak", "memory_bytes", "samples_us", "total_s", "output_tok_s", "total_tok_s",
                "warm_up_s", "host_share", "kv_pages", "mean_kv_pages", "max_kv_pages", "preemptions",
                "recomputed_tokens", "reused_tokens", "decode_read_bytes", "decode_unshared_bytes",
                "good_requests", "goodput_req_s")


class NotOneSeries(Stop):
    """The runs are readable, but do not belong in one file of this form."""
    exit_code = 3


def names_of(keys):
    """{key: name} for distinct keys: their labels, with every dimension if labels alone do not tell keys apart."""
    labels = {}
    for key in keys:
        labels.setdefault(str(key), []).append(key)
    names = {}
    for label, same in labels.items():
        for key in same:
            dimensions = json.loads(key.shape) if len(same) > 1 and key.shape else {}
            parts = [label] + [f"{name} {value}" for name, value in dimensions.items() if name != "name"]
            parts += [key.device] if len(same) > 1 else []
            names[key] = " ".join(parts)
    return names


def google_benchmark(runs):
    """The object that a Google Benchmark program writes with --benchmark_out: each sample is a repetition.

    The time of the host is not measured; cpu_time repeats real_time, so that tools that need both work.
    """
    found, run_ids = {}, {}
    for run in runs:
        for row in run.rows:
            key = records.key(row)
            if key in found:
                raise NotOneSeries(f"'{key}' is in the runs {run_ids[key]} and {run.run_id}; --run chooses one")
            found[key], run_ids[key] = row, run.run_id
    names = names_of(found)
    benchmarks = []
    for index, (key, row) in enumerate(found.items()):
        name = names[key].replace(" ", "/")
        common = {"name": name, "family_index": index, "per_family_instance_index": 0, "run_name": name,
                  "run_type": "iteration"}
        if row["status"] != "ok":
            benchmarks.append(common | {"repetitions": 1, "repetition_index": 0, "threads": 1,
                                        "error_occurred": True, "error_message": row["reason"]})
            continue
        samples = records.samples_us(row)
        for repetition, sample in enumerate(samples):
            benchmarks.append(common | {
                "repetitions": len(samples), "repetition_index": repetition, "threads": 1,
                "iterations": row.get("launches_per_sample", 1), "real_time": sample, "cpu_time": sample,
                "time_unit": "us"} | ({"label": "disturbed: " + row["disturbed"]} if row["disturbed"] else {}))
    first = runs[0]
    context = {"date": first.time, "executable": first.program, "num_cpus": first.fingerprint.get("cpu_threads"),
               "mhz_per_cpu": None, "cpu_scaling_enabled": None, "caches": [],
               "library_build_type": str(first.fingerprint.get("build_type", "unknown")).lower(),
               "commit": first.commit, "gpu": first.gpu.get("name"), "driver": first.gpu.get("driver"),
               "runs": [{"run_id": run.run_id, "program": run.program, "time_utc": run.time, "commit": run.commit,
                         "injected": run.injected} for run in runs]}
    return {"context": context, "benchmarks": benchmarks}


def csv_lines(runs):
    """A header and one line per row, in microseconds; what a row does not have is empty."""
    latencies = [f"{name.removesuffix('_ms')}_{percentile}_ms" for name in records.LATENCIES
                 for percentile in records.PERCENTILES]
    columns = [*_CSV_RUN, *_CSV_ROW, *_CSV_FIGURES, *latencies]
    yield columns
    for run in runs:
        about_run = {"time_utc": run.time, "commit": run.commit, "dirty": run.fingerprint.get("dirty"),
                     "run_id": run.run_id, "program": run.program,
                     "injected": json.dumps(run.injected) if run.injected else None}
        for row in run.rows:
            library = row["library"] or {}
            values = row | about_run | {"shape": json.dumps(row["shape"]) if "shape" in row else None,
                                        "library": library.get("name"), "library_version": library.get("version")}
            if row["status"] == "ok":
                samples, decoder = records.samples_us(row), row["kernel"] == records.DECODER
                values |= {"samples": len(samples), "samples_us": " ".join(f"{sample:.9g}" for sample in samples),
                           "median_us": records.median_us(row), "mad_us": records.mad_us(row)}
                interval = row["ci95_ms" if decoder else "ci95_us"]
                if interval:
                    values["ci95_low_us"], values["ci95_high_us"] = ((1e3 if decoder else 1) * end for end in interval)
                for name in (name for name in records.LATENCIES if row.get(name)):
                    values |= {f"{name.removesuffix('_ms')}_{percentile}_ms": value
                               for percentile, value in row[name].items()}
            yield [str(value).lower() if isinstance(value := values.get(name), bool) else value for name in columns]


@dataclass
class Pass:
    """One pass over the bench programs: runs of one commit, with each program once."""
    first: records.Run
    programs: set = field(default_factory=set)
    medians: dict = field(default_factory=dict)  # RowKey -> us


def passes(runs):
    """The passes of a history, oldest first. A repeated program or another commit starts a new one."""
    found = []
    for run in sorted(runs, key=lambda run: run.time):
        current = found[-1] if found else None
        if current is None or current.first.commit != run.commit or run.program in current.programs:
            found.append(current := Pass(run))
        current.programs.add(run.program)
        for row in run.rows:
            if row["status"] == "ok":
                current.medians[records.key(row)] = records.median_us(row)
    return [one for one in found if one.medians]


def otava(runs, across=False, fill=False, note=lambda words: None):
    """(lines, metric names) of a table for change-point detection: one line per pass, and one column per row of the
    records, which has the row's median in us.

    Otava needs a number in every cell, so a row that some pass lacks is left out. With `fill`, that pass gets the row's
    nearest earlier median instead (the first passes the nearest later one), as Otava does with sources that know gaps.
    """
    injected = [run for run in runs if run.injected]
    if injected:
        note(f"{terminal.count(len(injected), 'run')} with injected effects left out: they are no history")
    runs = [run for run in runs if not run.injected]
    for run in runs if not across else ():
        differences = records.comparable(runs[-1], run)
        if differences:
            raise NotOneSeries(f"{run.path}: run {run.run_id} is not comparable with run {runs[-1].run_id}: "
                               f"{'; '.join(differences)} (--across exports all the same)")
    history = passes(runs)
    keys = sorted({key for one in history for key in one.medians})
    gaps = [key for key in keys if any(key not in one.medians for one in history)]
    if gaps and fill:
        note(f"{terminal.count(len(gaps), 'row')} not measured in every pass: filled with the nearest earlier median")
        for key in gaps:
            known = next(one.medians[key] for one in history if key in one.medians)
            for one in history:
                known = one.medians.setdefault(key, known)
    elif gaps:
        note(f"{terminal.count(len(gaps), 'row')} not measured in every pass left out, such as '{gaps[0]}'; "
             "--fill keeps them")
        keys = [key for key in keys if key not in set(gaps)]
    names = names_of(keys)
    metrics = [names[key] for key in keys]
    if not metrics:
        raise NotOneSeries(f"no row has a figure in all {len(history)} passes" if history else "no row has a figure")
    lines = [["time", "commit", *metrics]]
    lines += [[one.first.time, one.first.commit, *(one.medians[key] for key in keys)] for one in history]
    return lines, metrics


def config_path(csv_path):
    """Where the configuration for a table goes."""
    return os.path.splitext(csv_path)[0] + ".yaml"


def write_otava_config(csv_path, metrics):
    """Writes Otava's configuration for the table, in YAML (of which JSON is a part): less time is better."""
    path = config_path(csv_path)
    name = os.path.splitext(os.path.basename(csv_path))[0]
    test = {"type": "csv", "file": os.path.abspath(csv_path), "time_column": "time", "attributes": ["commit"],
            "metrics": {metric: {"column": metric, "direction": -1} for metric in metrics}}
    write_whole(path, json.dumps({"tests": {name: test}}, indent=1) + "\n")
    terminal.say(f"wrote {csv_path} and {path}: otava analyze --config-file {path} {name}")


def csv_text(lines):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def choose(runs, wanted):
    """The runs whose run_id starts with one of `wanted`; all runs if none is wanted."""
    for start in wanted:
        matches = [run for run in runs if run.run_id.startswith(start)]
        if len(matches) != 1:
            known = ", ".join(run.run_id for run in matches or runs)
            raise NotOneSeries(f"--run {start} matches {len(matches)} runs; there are {known}")
    return [run for run in runs if not wanted or any(run.run_id.startswith(start) for start in wanted)]


def parse_arguments(argv):
    parsed = parser("Writes records in a form that another tool reads.", """formats:
  google-benchmark  JSON as Google Benchmark writes it, in which each sample is a repetition; its
                    tools/compare.py reads it. cpu_time repeats real_time: the host's time is not measured.
  csv               one line per row, with all figures; times are in microseconds
  otava             CSV for Apache Otava: one line per pass over the programs, with the median of each row in
                    a column. With -o FILE.csv, the configuration is written to FILE.yaml.

examples:
  scripts/records export main.jsonl --format google-benchmark -o main.json
  scripts/records export results/ --format csv | column -s, -t | less -S
  scripts/records export history/ --format otava -o history.csv && otava analyze --config-file history.yaml history

exit codes: 0 done, 1 a file that cannot be used or written, 2 misuse, 3 runs that do not belong in one file,
130 interrupted.""")
    parsed.add_argument("records", nargs="+", metavar="RECORDS", help="record files, or folders of them")
    parsed.add_argument("--format", choices=FORMATS, required=True)
    parsed.add_argument("-o", "--output", metavar="FILE", help="written whole or not at all (default: standard output)")
    parsed.add_argument("--run", action="append", default=[], metavar="ID",
                        help="only the run whose run_id begins with this; may be repeated")
    parsed.add_argument("--across", action="store_true", help="otava: even if device, driver or clocks differ")
    parsed.add_argument("--fill", action="store_true",
                        help="otava: keep rows that some pass lacks, with their nearest earlier median")
    arguments = parsed.parse_args(argv)
    for flag in ("across", "fill"):
        if getattr(arguments, flag) and arguments.format != "otava":
            parsed.error(f"--{flag} belongs to --format otava, not to {arguments.format}")
    if arguments.output and arguments.format == "otava" and arguments.output.endswith(".yaml"):
        parsed.error(f"-o is {arguments.output}; the configuration gets that name, the table needs another")
    return arguments


def main(argv):
    arguments = parse_arguments(argv)
    outputs = [("-o", arguments.output)]
    if arguments.output and arguments.format == "otava":
        outputs.append(("its configuration", config_path(arguments.output)))
    check_outputs(outputs, [("RECORDS", path) for path in arguments.records])
    runs = choose(records.read(arguments.records, terminal.say), arguments.run)
    if not any(run.rows for run in runs):
        raise records.BadRecords(f"{', '.join(arguments.records)}: no rows")
    metrics = None
    if arguments.format == "google-benchmark":
        text = json.dumps(google_benchmark(runs), indent=1) + "\n"
    elif arguments.format == "csv":
        text = csv_text(csv_lines(runs))
    else:
        lines, metrics = otava(runs, arguments.across, arguments.fill, terminal.say)
        text = csv_text(lines)
    if not arguments.output:
        terminal.write_out(text)
        return 0
    write_whole(arguments.output, text)
    if metrics:
        write_otava_config(arguments.output, metrics)
    return 0
