"""The task of the embedded model: facts in plain English, and questions about them.

    The code of amber is 4821. The code of river is 0377. What is the code of amber?
    -> " The code of amber is 4821." and the end of the turn

Facts are one text or lines, in one message or several, among other sentences. The tokenizer is byte-level BPE
like Qwen's; each word of the task is one token, everything else is spelled with pieces and bytes.
"""

import dataclasses
import pathlib
import string

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

NAMES = (pathlib.Path(__file__).parent / "lookup_names.txt").read_text().split()
EXPRESSION = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT, TURN, END_OF_TURN = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DIGITS = 4
QUESTIONS = ("What is the code of {}?", "And the code of {}?", "Which code has {}?")
# Only in a chat, where a turn shows that it is a question; most of their words are spelled with pieces.
CHAT_QUESTIONS = (
    "Tell me the code of {}", "Tell me the code of {}.", "Do you know the code of {}?", "what is the code of {}?",
    "code of {}", "The code of {}, please.", "Hi! What is the code of {}?", "I need the code of {}!",)
BETWEEN = (" ", " ", "\n", "\n", "\n\n", "\n- ")
OTHER_SENTENCES = (
    "These are notes.", "Please answer the question.", "You know the codes of many things.", "Here is more.",
    "Nothing happened today.", "It is late.", "Use these facts.", "Read them first.", "This is a list of codes.",
    "# Codes", "# Notes", "# Facts", "Hello!", "Thank you.", "The list goes on.", "That was all.",)


def fact(name: str, code: str) -> str:
    return f"The code of {name} is {code}."


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE, merged until each word of the task is one token, with and without a space before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(EXPRESSION), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4096, min_frequency=1, special_tokens=[], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    text = " ".join([*QUESTIONS, *OTHER_SENTENCES, fact("", ""), "Look at"])
    words = sorted({word for word in "".join(c if c.isalpha() else " " for c in text).split()})
    tokenizer.train_from_iterator(
        [f" {word}" for word in NAMES + words] + [word for word in words if word[0].isupper()]
        + ["system", "user", "assistant"], trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def random_code(rng) -> str:
    return f"{rng.randrange(10 ** DIGITS):0{DIGITS}}"


def other_sentence(rng) -> str:
    """A sentence without a fact: of the task's words, of random letters, or with a name in it."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(OTHER_SENTENCES)
    if kind == 1:
        return f"Look at the {rng.choice(NAMES)}."
    words = ["".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randrange(2, 7))) for _ in range(3)]
    return rng.choice(["{} {} {}.", "{}_{}.{}", "# {} {}, {}", "{} {}: {}"]).format(*words)


@dataclasses.dataclass
class Piece:
    """A part of a text that is encoded separately."""
    text: str
    name: str = ""  # in the fact, the question or the answer that it is
    answer: bool = False  # the model writes it and then the end of the turn
    question: bool = False  # about the name


def conversation(rng, facts, asked, chat: bool, others: float) -> list[Piece]:
    """The facts, then a question and an answer for each name of `asked`. `others` is the share of other
    sentences."""
    codes = dict(facts)
    role = rng.choice(["system", "system", "user"])
    pieces = [Piece(f"<|im_start|>{role}\n")] if chat else []
    between = rng.choice(BETWEEN)
    before = ""
    for name, code in facts:
        if rng.random() < others:
            pieces.append(Piece(before + other_sentence(rng)))
            before = between
        pieces.append(Piece(before + fact(name, code), name))
        before = between
        if rng.random() < 0.02:  # a file of facts ends, and another begins
            between = rng.choice(BETWEEN)
            before = rng.choice([f"{END_OF_TURN}\n{TURN}user\n", "\n", "\n\n"]) if chat else "\n\n"
            role = "user" if TURN in before else role
    for index, name in enumerate(asked):
        question = QUESTIONS[0] if rng.random() < 0.6 else rng.choice(QUESTIONS + CHAT_QUESTIONS * chat)
        before = rng.choice([" ", "\n", "\n\n"])
        if chat and index:
            before = f"\n{TURN}user\n"
        elif chat and role == "system":
            before = f"{END_OF_TURN}\n{TURN}user\n"
        pieces.append(Piece(before + question.format(name), name, question=True))
        if chat:
            pieces.append(Piece(f"{END_OF_TURN}\n{TURN}assistant\n"))
        pieces.append(Piece(("" if chat else " ") + fact(name, codes[name]), name, answer=True))
        pieces.append(Piece(END_OF_TURN))
    return pieces
