"""A check of scripts/maintain/believe report, and the files that `collect` left for the checks to read."""
import json
from dataclasses import dataclass, field

from tokline import records
from tokline.records import BadRecords


@dataclass
class Check:
    """A row of the table. `met` is None where nothing was measured; `details` goes to the JSON."""
    id: str
    check: str
    must: str
    reproduce: str
    measured: str = "not measured"
    met: bool | None = None
    details: dict = field(default_factory=dict)

    @property
    def verdict(self):
        return {None: "not measured", True: "yes", False: "NO"}[self.met]


def share(part, whole):
    return f"{part:,} of {whole:,} ({100 * part / whole:.1f} %)"


class Jobs:
    """The runs of the files that `collect` left, each read once. `left_out` are those whose program was cut short:
    they have none. Raises BadRecords for a file that holds something else, or the run of another."""
    def __init__(self, say=lambda text: None):
        self._say, self._runs, self._paths, self.left_out = say, {}, {}, []

    def runs(self, path):
        if path not in self._runs:
            self._runs[path] = self._read(path)
        return self._runs[path]

    def _read(self, path):
        unfinished = []
        runs = records.read([path], unfinished.append) if b"\n" in path.read_bytes() else []
        if unfinished or not runs or any(run.killed or run.interrupted for run in runs):
            self.left_out.append(str(path))
            self._say(f"{path}: its program was cut short; left out, with what it would be compared with")
            return []
        for run in runs:
            if self._paths.setdefault(run.run_id, path) != path:
                raise BadRecords(f"{path}: run {run.run_id} is in {self._paths[run.run_id]} too")
        return runs


def journal_of(folder):
    path = folder / "journal.jsonl"
    if not path.exists():
        return []
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        return [{name: entry[name] for name in ("kind", "program", "exit", "seconds")} for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRecords(f"{path}: no journal of scripts/maintain/believe collect: {error!r}") from None


def found_in(folders, pattern):
    """What the tests left that `collect` ran."""
    return [path for folder in folders for path in sorted((folder / "tests").glob(pattern))]
