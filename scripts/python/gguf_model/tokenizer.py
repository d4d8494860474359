"""Rebuilds tokenizer.json from the vocabulary, merges or scores, and the named pre-tokenizer of a GGUF file."""

from dataclasses import dataclass
from enum import IntEnum

from gguf_model.reader import File
from gguf_model.weights import Refused

SPACE = "▁"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class TokenType(IntEnum):
    """tokenizer.ggml.token_type."""
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Words:
    """How a byte-level tokenizer splits text: what tokenizer.ggml.pre stands for."""
    pre_tokenizers: tuple[dict, ...]
    normalizer: dict | None = None
    ignore_merges: bool = False
    begin: bool = False  # whether a text begins with the BOS token unless the file says otherwise


def byte_level(use_regex: bool) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(expression: str) -> tuple[dict, ...]:
    return ({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False},
            byte_level(False))


WORDS = {
    "gpt-2": Words((byte_level(True),)),
    "smollm": Words(({"type": "Digits", "individual_digits": True}, byte_level(True))),
    "llama-bpe": Words(split(LLAMA3), ignore_merges=True, begin=True),
    "qwen2": Words(split(QWEN2), normalizer={"type": "NFC"}),
    "tekken": Words(split(TEKKEN), ignore_merges=True, begin=True),
    "deepseek-r1-qwen": Words(split(QWEN2), normalizer={"type": "NFC"}, begin=True),
}


def vocabulary(file: File) -> tuple[list[str], list[TokenType]]:
    """The tokens and their types, by id."""
    tokens, types = file.texts("tokenizer.ggml.tokens"), file.texts("tokenizer.ggml.token_type")
    if len(tokens) != len(types) or not tokens:
        raise Refused(f"there are {len(tokens)} tokens and {len(types)} types of tokens; they must be as many")
    if len(set(tokens)) != len(tokens):
        raise Refused(f"{len(tokens) - len(set(tokens))} tokens are spelled like another one")
    try:
        return tokens, [TokenType(kind) for kind in types]
    except ValueError as error:
        raise Refused(f"tokenizer.ggml.token_type: {error}") from error


def merges_of_scores(tokens: list[str], scores: list[float]) -> list[list[str]]:
    """The merges that make each token from two others, best score first: what transformers derives from a
    SentencePiece model."""
    ids = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores):
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        found = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        merges += [(score, *pair) for pair in sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]]))]
    merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [[left, right] for _, left, right in merges]


def added_tokens(tokens: list[str], types: list[TokenType]) -> list[dict]:
    """The tokens that are looked for before anything is merged."""
    kinds = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    return [{"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": kind != TokenType.USER_DEFINED}
            for index, (token, kind) in enumerate(zip(tokens, types)) if kind in kinds]


def token_at(file: File, tokens: list[str], role: str) -> str | None:
    """The token of a role such as "bos"."""
    index = file.find(f"tokenizer.ggml.{role}_token_id")
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise Refused(f"tokenizer.ggml.{role}_token_id is {index}; there are {len(tokens)} tokens")
    return tokens[index]


def around(before: str | None, after: str | None, tokens: list[str]) -> dict | None:
    """The post-processor that puts tokens before and after a text."""
    def item(token):
        return {"SpecialToken": {"id": token, "type_id": 0}}

    used = [token for token in (before, after) if token is not None]
    if not used:
        return None
    text = {"Sequence": {"id": "A", "type_id": 0}}
    single = [*([item(before)] if before else []), text, *([item(after)] if after else [])]
    return {"type": "TemplateProcessing", "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [tokens.index(token)], "tokens": [token]}
                               for token in used}}


def sentence_pieces(file: File, tokens: list[str]) -> dict:
    """The parts of tokenizer.json for tokenizer.ggml.model "llama"."""
    scores = file.texts("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise Refused(f"there are {len(tokens)} tokens and {len(scores)} scores; they must be as many")
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix = file.find("tokenizer.ggml.add_space_prefix") is not False
    steps = [{"type": "Prepend", "prepend": SPACE}, spaces] if prefix else [spaces]
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else [])]
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"unk_token": token_at(file, tokens, "unknown"), "fuse_unk": True, "byte_fallback": True,
                      "merges": merges_of_scores(tokens, scores)}}


def byte_pairs(file: File, words: Words) -> dict:
    """The parts of tokenizer.json for tokenizer.ggml.model "gpt2"."""
    merges = [merge.split(" ") for merge in file.texts("tokenizer.ggml.merges")]
    return {"normalizer": words.normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(words.pre_tokenizers)},
            "decoder": byte_level(True), "model": {"ignore_merges": words.ignore_merges, "merges": merges}}


def tokenizer_files(file: File) -> tuple[dict, dict, list[int]]:
    """tokenizer.json, tokenizer_config.json, and the ids that end a text."""
    tokens, types = vocabulary(file)
    kind = file.text("tokenizer.ggml.model")
    if kind == "llama":
        parts, begin = sentence_pieces(file, tokens), True
    elif kind == "gpt2":
        if (name := file.find("tokenizer.ggml.pre") or "gpt-2") not in WORDS:
            raise Refused(f"tokenizer.ggml.pre is '{name}', which is not supported; allowed: {', '.join(WORDS)}")
        parts, begin = byte_pairs(file, WORDS[name]), WORDS[name].begin
    else:
        raise Refused(f"tokenizer.ggml.model is '{kind}', which is not supported; allowed: llama, gpt2")
    if (said := file.find("tokenizer.ggml.add_bos_token")) is not None:
        begin = said
    special = {role: token_at(file, tokens, role) for role in ("bos", "eos", "unknown", "padding", "eot")}
    post = around(special["bos"] if begin else None,
                  special["eos"] if file.find("tokenizer.ggml.add_eos_token") else None, tokens)
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             **parts["model"], "vocab": {token: index for index, token in enumerate(tokens)}}
    model["merges"] = model.pop("merges")  # after the vocabulary, as everywhere
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens(tokens, types),
             "normalizer": parts["normalizer"], "pre_tokenizer": parts["pre_tokenizer"], "post_processor": post,
             "decoder": parts["decoder"], "model": model}
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
              **{names[role]: token for role, token in special.items() if token is not None and role in names}}
    ends = {tokens.index(special[role]) for role in ("eos", "eot") if special[role] is not None}
    return whole, config, sorted(ends)
