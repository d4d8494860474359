"""Writes the tokenizers' golden files with the pinned `tokenizers`; scripts/maintain/tokenizer_golden runs it.

harness/tests/text/golden/README.md describes the formats.
"""

import filecmp
import json
import random
import struct
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import golden_chat
import golden_jinja
import golden_pipelines
import golden_strings
from maker_arguments import ROOT, TEXT_GOLDEN, TEXT_SEED, TEXT_STRINGS, tokenizer_golden

BROKEN = 300
CHATS = 20
MORE_CHATS = 60
RANDOM_DECODES = 120
CATEGORIES = [r"\p{L}", r"\p{Ll}", r"\p{Lm}", r"\p{Lo}", r"\p{Lt}", r"\p{Lu}", r"\p{M}", r"\p{N}", r"\p{Nd}", r"\p{Nl}", r"\p{No}", r"\p{P}", r"\p{S}", r"\p{Z}", r"\s", "(?i:[a-z])"]
EXPRESSIONS = [r"\s+$", r"$", r"a$|\n", r"\s*?$", r"(?:\p{Lu}|\p{Ll})+", r"[\p{Lu}\p{Lo}]\p{Ll}*+", r"\P{L}++", r"(?i:'S|b)",
               r"[^\p{Nd}\s]{1,2}", r"\s+(?!\S)|\s+", r"(?<=a)\s|(?<!\n)1", r"(?>\s+)B|é?+世",
              # Mistral's Tekken
              r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
              r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
              r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
SCALARS = [code_point for code_point in range(0x110000) if not 0xD800 <= code_point < 0xE000]
NFC_BLOCK = 4096


def write_json(path: Path, value, lines: bool = False) -> None:
    """JSON as the golden files have it: UTF-8, and one item per line if `lines`."""
    def dump(item):
        return json.dumps(item, ensure_ascii=False, separators=(",", ":"))

    text = "[\n" + ",\n".join(dump(item) for item in value) + "\n]" if lines else dump(value)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def id_records(lists: list[list[int]]) -> bytes:
    """Each list as its length and its ids, all 16 bits, little endian."""
    return b"".join(struct.pack(f"<{1 + len(ids)}H", len(ids), *ids) for ids in lists)


def write_pipeline(folder: Path, make, plain: list[str], seed: int) -> None:
    """The files of one pipeline."""
    folder.mkdir(parents=True, exist_ok=True)
    definition = make()
    write_json(folder / "tokenizer.json", definition)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    specials = golden_strings.with_specials(seed, [token["content"] for token in definition["added_tokens"]])

    encoded = [tokenizer.encode(text).ids for text in plain + specials]
    tokenizer.encode_special_tokens = True
    as_text = [tokenizer.encode(text, add_special_tokens=False).ids for text in plain + specials]
    (folder / "ids.bin").write_bytes(id_records(encoded) + id_records(as_text[len(plain) :]))

    # Only where the text does not come back.
    decoded = {}
    for index, (text, ids) in enumerate(zip(plain + specials, as_text)):
        back = tokenizer.decode(ids, skip_special_tokens=False)
        if back != text:
            decoded[str(index)] = back
    rng = random.Random(seed)
    size = tokenizer.get_vocab_size()
    ids_at_random = [[rng.randrange(size) for _ in range(rng.randrange(1, 24))] for _ in range(RANDOM_DECODES)]
    decodes = [{"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False),
                "without_special": tokenizer.decode(ids, skip_special_tokens=True)}
               for ids in ids_at_random]
    write_json(folder / "cases.json", {"special_strings": specials, "decoded": decoded, "decodes": decodes})


def members(expression: str) -> list[list[int]]:
    """The code points that an expression matches, as ranges; a range may span the surrogates."""
    split = pre_tokenizers.Split(Regex(f"(?:{expression})+"), "removed", invert=True)
    found = split.pre_tokenize_str("".join(map(chr, SCALARS)))
    return [[SCALARS[begin], SCALARS[end - 1]] for _, (begin, end) in found]


def digits() -> list[list[int]]:
    """The code points that the pre-tokenizer Digits takes for digits, as ranges."""
    is_digit = pre_tokenizers.Digits(individual_digits=True)
    found = pre_tokenizers.Digits(individual_digits=False).pre_tokenize_str("".join(map(chr, SCALARS)))
    return [[SCALARS[begin], SCALARS[end - 1]] for piece, (begin, end) in found
            if len(is_digit.pre_tokenize_str("a" + piece[0])) > 1]


def word_characters() -> list[list[int]]:
    """The code points below U+20000 after which an added token is not one of its own, as ranges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken("fox", single_word=True, normalized=False)])
    ranges = []
    for code_point in (scalar for scalar in SCALARS if scalar < 0x20000):
        if not tokenizer.encode(chr(code_point) + "fox").ids:
            if ranges and ranges[-1][1] == code_point - 1:
                ranges[-1][1] = code_point
            else:
                ranges.append([code_point, code_point])
    return ranges


def splits(seed: int) -> list[list]:
    """[expression, [[pieces of a text], ...]]: how the library splits texts that are full of line ends."""
    rng = random.Random(seed)
    texts = ["".join(rng.choice(["a", "B", "é", "世", "1", " ", "\n", "\r\n", "'s", "\u00a0"]) for _ in range(length))
             for length in range(1, 41)]
    return [[one, [[piece for piece, _ in pre_tokenizers.Split(Regex(one), "isolated").pre_tokenize_str(text)]
                   for text in texts]] for one in EXPRESSIONS]


def fnv1a(data: bytes) -> int:
    """The 64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def nfc_hashes() -> list[str]:
    """A hash for each block of code points, of their NFC alone, before a mark that moves left, and after one."""
    nfc = normalizers.NFC()
    hashes = []
    for first in range(0, 0x110000, NFC_BLOCK):
        text = ""
        for code_point in range(first, first + NFC_BLOCK):
            if not 0xD800 <= code_point < 0xE000:
                character = chr(code_point)
                cases = (character, f"a{character}\u0334", f"a\u0301{character}", character * 2)
                text += "\n".join(map(nfc.normalize_str, cases)) + "\n"
        hashes.append(f"{fnv1a(text.encode()):016x}")
    return hashes


def write_all(folder: Path, seed: int, count: int) -> None:
    """Every file of the golden folder that comes from here; with other strings, also all chat templates."""
    committed = (seed, count) == (TEXT_SEED, TEXT_STRINGS)
    chat = golden_chat.chat_golden(ROOT, not committed, seed, CHATS if committed else MORE_CHATS)
    folder.mkdir(parents=True, exist_ok=True)
    plain = golden_strings.strings(seed, count)
    write_json(folder / "strings.json", plain, lines=True)
    write_json(folder / "broken.json",
               [[data.hex(), fault.start, fault.reason, data.decode(errors="replace")]
                for data, fault in golden_strings.broken_bytes(seed, BROKEN)], lines=True)
    write_json(folder / "unicode.json", {"members": {name: members(name) for name in CATEGORIES}, "digits": digits(),
                                        "word": word_characters(), "nfc": nfc_hashes()})
    write_json(folder / "splits.json", splits(seed), lines=True)
    write_json(folder / "chat.json", chat)
    write_json(folder / "jinja.json", [golden_jinja.MESSAGES, *golden_jinja.results()], lines=True)
    for name, make in golden_pipelines.PIPELINES.items():
        write_pipeline(folder / name, make, plain, seed)


def check() -> int:
    """Makes the files elsewhere and compares. Returns the exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        write_all(Path(scratch), TEXT_SEED, TEXT_STRINGS)
        made = sorted(str(path.relative_to(scratch)) for path in Path(scratch).rglob("*") if path.is_file())
        _, different, missing = filecmp.cmpfiles(TEXT_GOLDEN, scratch, made, shallow=False)
        different += missing
    for path in different:
        print(f"scripts/maintain/tokenizer_golden: {path}: differs from what is made now", file=sys.stderr)
    print(f"{len(made) - len(different)} of {len(made)} files are as they are made now")
    return 1 if different else 0


def main() -> int:
    arguments = tokenizer_golden()
    if arguments.check:
        return check()
    write_all(arguments.out, arguments.seed, arguments.strings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
