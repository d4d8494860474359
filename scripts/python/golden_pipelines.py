"""Small tokenizers with the pipelines of the model families, trained on the words of the golden strings."""

import json
import random

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

import golden_strings
from maker_arguments import ROOT

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPACE = "▁"
REPLACE_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECE_SCRIPTS = ["english", "german", "french", "polish", "russian", "greek", "hindi", "chinese", "korean"]


def corpus(scripts: list[str]) -> list[str]:
    """The text that the tokenizers are trained on: repeated words, so that merges are found."""
    rng = random.Random(1)
    words = [word for script in scripts for word in golden_strings.WORDS[script]]
    lines = [" ".join(rng.choice(words) for _ in range(12)) for _ in range(1500)]
    lines += [" ".join(rng.choice(golden_strings.WORDS["english"]) for _ in range(12)) for _ in range(1500)]
    return lines + golden_strings.CODE * 20 + [" " * 8, "\n\n", "    return"] * 20


def trained(
    pre_tokenizer, normalizer, vocab_size: int, special: list[str], alphabet: list[str], scripts: list[str]
) -> tuple[dict, list]:
    """Vocabulary and merges. Every character of the corpus is a token: a choice of characters would not be seeded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(scripts), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], model["merges"]


def added(content: str, special: bool, normalized: bool = False, **flags) -> dict:
    """An entry of added_tokens without its id."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False} | flags
    return {"content": content, **flags, "normalized": normalized, "special": special}


def assembled(vocab: dict, merges: list, added_tokens: list[dict], model: dict, **parts) -> dict:
    """A tokenizer.json of these parts."""
    known = dict(vocab)
    entries = [{"id": known.setdefault(token["content"], len(known)), **token} for token in added_tokens]
    entries.sort(key=lambda token: token["id"])
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **model,
             "vocab": vocab, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": entries,
            "normalizer": parts.get("normalizer"), "pre_tokenizer": parts.get("pre_tokenizer"),
            "post_processor": parts.get("post_processor"), "decoder": parts["decoder"], "model": model}


def byte_level(add_prefix_space: bool, use_regex: bool) -> dict:
    """The ByteLevel component."""
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def split_then_bytes(expression: str) -> dict:
    """The pre-tokenizer of Llama 3 and Qwen."""
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level(False, False)]}


def begin_with(token: str, token_id: int) -> dict:
    """A template that puts `token` before a text."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {"type": "TemplateProcessing", "single": [first, text],
            "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}}}


def trained_bytes(expression: str, normalizer, vocab_size: int) -> tuple[dict, list]:
    """A byte-level vocabulary split by `expression`."""
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated"),
                                             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return trained(
        pre_tokenizer, normalizer, vocab_size, [], pre_tokenizers.ByteLevel.alphabet(), list(golden_strings.WORDS))


def trained_pieces(vocab_size: int, special: list[str]) -> tuple[dict, list]:
    """A SentencePiece-like vocabulary, whose spaces are ▁."""
    pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    return trained(pre_tokenizer, None, vocab_size, special, [SPACE], PIECE_SCRIPTS)


def gpt2() -> dict:
    """GPT-2: merges are strings, the model has no type, an added token is found after normalising."""
    vocab, merges = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), None, 1100, [],
                            pre_tokenizers.ByteLevel.alphabet(), list(golden_strings.WORDS))
    vocab["<|endoftext|>"] = len(vocab)
    whole = assembled(vocab, [" ".join(merge) for merge in merges], [added("<|endoftext|>", True, normalized=True)],
                      {"continuing_subword_prefix": "", "end_of_word_suffix": ""},
                      pre_tokenizer=byte_level(False, True), post_processor=byte_level(True, True),
                      decoder=byte_level(True, True))
    del whole["model"]["type"], whole["pre_tokenizer"]["use_regex"]
    return whole


def llama3() -> dict:
    """Llama 3: ignore_merges, words that no merge makes, <|begin_of_text|> before a text."""
    vocab, merges = trained_bytes(LLAMA3, None, 1100)
    spell = Tokenizer(models.BPE())
    spell.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in [" tokenizer", " brown", "123", "'re", "你好", "\n\n\n", " =", "xyzzy", " Ελ"]:
        vocab.setdefault(spell.pre_tokenizer.pre_tokenize_str(word)[0][0], len(vocab))
    merges = [merge for merge in merges if "".join(merge) not in ("Ġbrown", "Ġtokenizer")]
    used = {"".join(merge) for merge in merges}
    merges = [merge for merge in merges if all(len(half) == 1 or half in used for half in merge)]
    begin = len(vocab)
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
             "<|eot_id|>", "<|python_tag|>"]
    post = {"type": "Sequence", "processors": [byte_level(True, True), begin_with("<|begin_of_text|>", begin)]}
    return assembled(vocab, merges, [added(name, True) for name in names], {"ignore_merges": True},
                     pre_tokenizer=split_then_bytes(LLAMA3), post_processor=post, decoder=byte_level(True, True))


def qwen() -> dict:
    """Qwen2 and Qwen3: NFC; added tokens that are not special; one that NFC changes."""
    vocab, merges = trained_bytes(QWEN2, normalizers.NFC(), 1100)
    tokens = [added(name, True) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    tokens += [added(name, False) for name in ("<tool_call>", "</tool_call>", "<think>", "</think>")]
    tokens.append(added("cafe\u0301!", False, normalized=True))
    return assembled(vocab, merges, tokens, {}, normalizer={"type": "NFC"}, pre_tokenizer=split_then_bytes(QWEN2),
                     post_processor=byte_level(False, False), decoder=byte_level(False, False))


def smollm() -> dict:
    """SmolLM2: every digit is a piece, then GPT-2's expression."""
    digits = {"type": "Digits", "individual_digits": True}
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                             pre_tokenizers.ByteLevel(add_prefix_space=False)])
    vocab, merges = trained(pre_tokenizer, None, 1100, [], pre_tokenizers.ByteLevel.alphabet(),
                            list(golden_strings.WORDS))
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return assembled(vocab, merges, [added(name, True) for name in names], {},
                     pre_tokenizer={"type": "Sequence", "pretokenizers": [digits, byte_level(False, True)]},
                     decoder=byte_level(True, True))


def piece_decoder(strip: bool) -> dict:
    """The decoder of converted SentencePiece models."""
    steps = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
             {"type": "Fuse"}]
    if strip:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def o200k() -> dict:
    """Llama 4, Mistral's Tekken and Phi-4-mini: words end where capital letters begin."""
    contraction = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    expression = (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contraction}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contraction}"
                  r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    vocab, merges = trained_bytes(expression, None, 1100)
    names = ("<|begin_of_text|>", "<|eot|>")
    return assembled(vocab, merges, [added(name, True) for name in names], {"ignore_merges": True},
                     pre_tokenizer=split_then_bytes(expression), post_processor=begin_with(names[0], len(vocab)),
                     decoder=byte_level(True, True))


def deepseek() -> dict:
    """DeepSeek's models of the Llama family: one Split after another, $, Digits; and a Strip."""
    expressions = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]
    steps = [{"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False} for one in expressions]
    steps += [{"type": "Digits", "individual_digits": False}, byte_level(False, False)]
    vocab, merges = trained_bytes(expressions[1], None, 1100)
    return assembled(vocab, merges, [added("<｜end▁of▁sentence｜>", True), added("<｜User｜>", False)], {},
                     normalizer={"type": "Strip", "strip_left": False, "strip_right": True},
                     pre_tokenizer={"type": "Sequence", "pretokenizers": steps}, decoder=byte_level(True, True))


def gemma() -> dict:
    """Gemma: a space ends a piece, <bos> before a text, byte fallback."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    vocab, merges = trained_pieces(1400, special + BYTES)
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    names = special + ["<start_of_turn>", "<end_of_turn>"]
    return assembled(vocab, merges, [added(name, True) for name in names],
                     {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, normalizer=REPLACE_SPACES,
                     pre_tokenizer=split, post_processor=begin_with("<bos>", 2), decoder=piece_decoder(False))


def mistral() -> dict:
    """Mistral's later SentencePiece models: Metaspace before the first piece alone, and no split."""
    special = ["<unk>", "<s>", "</s>"]
    vocab, merges = trained_pieces(1400, special + BYTES)
    pre_tokenizer = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    names = special + ["[INST]", "[/INST]"]
    return assembled(vocab, merges, [added(name, True) for name in names],
                     {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, pre_tokenizer=pre_tokenizer,
                     post_processor=begin_with("<s>", 1), decoder=piece_decoder(True))


def llama2() -> dict:
    """Llama 2: ▁ before each section, <s> before a text, byte fallback."""
    special = ["<unk>", "<s>", "</s>"]
    vocab, merges = trained_pieces(1400, special + BYTES)
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, REPLACE_SPACES]}
    return assembled(vocab, [" ".join(merge) for merge in merges], [added(name, True) for name in special],
                     {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, normalizer=normalizer,
                     post_processor=begin_with("<s>", 1), decoder=piece_decoder(True))


def ernie45() -> dict:
    """ERNIE 4.5: like Llama 2, but nothing is put before a text."""
    special = ["<unk>", "<s>", "</s>"]
    vocab, merges = trained_pieces(1400, special + BYTES)
    names = special + ["<|begin_of_sentence|>", "<|end_of_sentence|>", "<mask:0>", "<mask:4>"]
    normalizer = {"type": "Sequence", "normalizers": [REPLACE_SPACES]}
    return assembled(vocab, merges, [added(name, True) for name in names],
                     {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}, normalizer=normalizer,
                     decoder=piece_decoder(False))


def metaspace() -> dict:
    """Metaspace instead of a normaliser, no byte fallback, and added tokens of every kind."""
    special = ["<unk>", "<s>", "</s>"]
    vocab, merges = trained_pieces(1100, special)
    tokens = [added(name, True) for name in special]
    tokens += [added("<mask>", True, lstrip=True), added("<end>", True, rstrip=True),
               added("fox", False, single_word=True), added("<both>", False, lstrip=True, rstrip=True)]
    pre = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": True},
            {"type": "Split", "pattern": {"Regex": r"\p{P}"}, "behavior": "MergedWithPrevious", "invert": False},
            {"type": "Split", "pattern": {"Regex": r"\p{M}+|\p{S}"}, "behavior": "MergedWithNext", "invert": False},
            {"type": "Split", "pattern": {"Regex": r"\P{N}"}, "behavior": "Contiguous", "invert": False},
            {"type": "Split", "pattern": {"String": "-"}, "behavior": "Removed", "invert": False},
            {"type": "Split", "pattern": {"Regex": r"[^a\s]"}, "behavior": "Isolated", "invert": True}],
    }
    decoder = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": True}
    return assembled(vocab, merges, tokens, {"unk_token": "<unk>"}, pre_tokenizer=pre,
                     post_processor=begin_with("<s>", 1), decoder=decoder)


def embedded() -> dict:
    """The embedded model: Qwen's pipeline with few merges, none of which joins digits or line ends."""
    return json.loads((ROOT / "models" / "qwen3-lookup" / "tokenizer.json").read_text(encoding="utf-8"))


PIPELINES = {make.__name__: make for make in (gpt2, llama3, qwen, smollm, o200k, deepseek, gemma, mistral, llama2,
                                              ernie45, metaspace, embedded)}
