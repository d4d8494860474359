"""Seeded strings for the golden files of the tokenizers: many scripts, emoji, code, white space, digits,
marks, special tokens, long words, random code points, and bytes that are not UTF-8."""

import random

WORDS = {"english": "the of and to in that Hello world it's don't we've I'm you'll they'd Don'T WE'RE can't "
         "quick brown fox jumps over lazy dog tokenizer decoding naïve café résumé coöperate".split(),
         "german": "Straße Übermut größer Fußgängerüberweg Donaudampfschifffahrtsgesellschaft und für".split(),
         "french": "l'été aujourd'hui garçon œuvre où ça s'il n'est-ce ÉCOLE qu’il".split(),
         "polish": "zażółć gęślą jaźń Łódź święto".split(),
         "vietnamese": "Tiếng Việt đường phố không được nghiệp".split(),
         "turkish": "İstanbul ışık ığdır çğöşü".split(),
         "russian": "Привет мир съешь ещё этих мягких французских булок Ёлка".split(),
         "greek": "Καλημέρα κόσμε ὀδός ΐδιος Ἀθῆναι".split(),
         "hebrew": "שלום עולם בְּרֵאשִׁית".split(),
         "arabic": "مرحبا بالعالم السَّلَامُ عَلَيْكُمْ ١٢٣".split(),
         "hindi": "नमस्ते दुनिया क्षत्रिय हिन्दी १२३४".split(),
         "tamil": "வணக்கம் உலகம் கொடு".split(),
         "thai": "สวัสดีชาวโลก ภาษาไทย น้ำ ๑๒๓".split(),
         "chinese": "你好 世界 今天天气很好 標記化 繁體 人工智能。 三点一四，".split(),
         "japanese": "こんにちは 世界 カタカナ が パ 日本語の文 ﾊﾝｶｸ".split(),
         "korean": "안녕하세요 세계 한국어 각 닭".split(),
         "georgian": "გამარჯობა მსოფლიო ᲒᲐᲛᲐᲠᲯᲝᲑᲐ".split(),
         "amharic": "ሰላም ለዓለም".split(),
         "rare": "𐌰𐍄𐍄𐌰 𓀀𓂀 𝒜𝓁𝓅𝒽𝒶 𝟘𝟙𝟚 ﬁﬂ ﬆ Ⓐⓑ ㎏ ½ ² ⅷ Ⅻ Å Ω K ſ ŉ".split()}
EMOJI = ("😀 😂 👍 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 🇯🇵🇫🇷 ❤️ ☺ 1️⃣ 🤷🏻‍♀️ 🧑🏿‍🚀 🫠 🪿 ✈︎ ©️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿").split()
SPACES = [" ", "  ", "   ", " " * 7, " " * 33, "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r", " \n",
          "\n ", " \t ", "\u00a0", "\u3000", "\u2028", "\u2029", "\u200b", "\u2003", "\u0085", "\u180e", "\ufeff", "\v",
          "\f", "\x1c", "\x00"]
CODE = [
    "for (int i = 0; i < n; ++i) {\n    sum += a[i] * b[i];\n}\n",
    'def f(x: int) -> str:\n\treturn f"{x!r:>10}"  # ok\n', "if (a&&b||!c){x=y?z:0x1F;}//e=mc^2",
    "#include <vector>\nstd::vector<std::pair<int,int>> v{{1,2}};", "SELECT * FROM t WHERE a='b''c' AND d>=1e-9;",
    '<div class="a b">&nbsp;</div>\r\n<!-- c -->', '{"key": [1, 2.5, null, true], "s": "\\u00e9\\n"}',
    "$ git commit -m 'x' && rm -rf ./build/*", "\\frac{1}{2}\\sum_{i=0}^{n} x_i^2",
    "https://example.com/a?b=c&d=%20#e user@example.org", 'fn main() { let s = r#"raw"#; println!("{:?}", s); }',
    "a_b_c camelCase PascalCase SCREAMING_SNAKE kebab-case",]
DIGITS = ["0", "42", "123", "1234", "12345", "1234567890", "3.14159", "1,000,000", "2026-01-31", "1e-10", "0xDEADBEEF",
          "٣٤٥", "१२३४", "²³", "Ⅷ", "½", "一二三", "१٢3", "9" * 40]
CONTRACTIONS = ["it's", "IT'S", "we've", "They'Re", "I'll", "he'd", "'tis", "rock'n'roll", "'s", "x's's", "it’s", "'ſ",
                "'S'T", " 're", "o'clock", "''''", "'vex", "'lll"]
MARKS = ["e\u0301", "a\u0308\u0323", "o\u0302\u0301", "\u1100\u1161\u11a8", "\u0928\u093c", "q\u0307\u0323", "\u0301",
         "\u212b", "\u2126", "\u0344", "\uac00\u11a8", "Z\u0351\u036b\u0343a\u0321", "\u0f73", "\u0958", "\ufb1d",
         "\ufb4f", "\U0001d15e", "\u0958\u0301", "\u3099か\u3099"]
PUNCTUATION = list("!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`'\"") + [
    "...", "—", "…", "«»", "、", "。", "！", "¿", "?!", "--", "→", "∀x∈ℝ", "$€¥", "▁", "▁▁", "Ġ", "Ċ", "\ufffd",]


def with_specials(seed: int, specials: list[str]) -> list[str]:
    """Special tokens in text: alone, doubled, cut, in words, between spaces, anywhere."""
    rng = random.Random(seed)
    strings = []
    for special in specials:
        strings += [special, special * 2, f"a{special}b", f" {special} ", f"x  {special}\n\n y", special[:-1],
                    special[1:], f"{special[:2]}{special}", f"{special}\u0301", f"é{special}世界", special.upper(),
                    f"\n{special}\n", f" {special}{special} a {special}"]
    for _ in range(100):
        strings.append(random_string(rng, 4) + rng.choice(specials) + random_string(rng, 4) + rng.choice(specials))
    return strings


# What a piece of a kind from 5 is chosen from.
CHOICES = {5: WORDS["english"], 6: EMOJI, 7: SPACES, 8: DIGITS, 9: CONTRACTIONS, 10: MARKS, 11: PUNCTUATION,
           15: SPACES[:6]}


def piece(rng: random.Random) -> str:
    """One piece of a random string."""
    kind = rng.randrange(16)
    if kind < 5:
        return rng.choice(WORDS[rng.choice(list(WORDS))])
    if kind in CHOICES:
        return rng.choice(CHOICES[kind])
    if kind == 12:
        return rng.choice(CODE) if rng.random() < 0.2 else rng.choice(CODE)[: rng.randrange(1, 20)]
    if kind == 13:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABC'0123 ") for _ in range(rng.randrange(1, 12)))
    return chr(random_code_point(rng))


def random_code_point(rng: random.Random) -> int:
    """A scalar value: mostly one of the planes in use, sometimes any."""
    while True:
        limit = rng.choice([0x80, 0x250, 0x3000, 0x10000, 0x20000, 0x110000])
        code_point = rng.randrange(limit)
        if not 0xD800 <= code_point < 0xE000:
            return code_point


def random_string(rng: random.Random, most_pieces: int) -> str:
    """Pieces, half of them with a space behind them."""
    return "".join(piece(rng) + (" " if rng.random() < 0.5 else "") for _ in range(rng.randrange(1, most_pieces)))


def fixed_strings() -> list[str]:
    """The empty string, every piece by itself, and very long words."""
    words = [word for script in WORDS.values() for word in script]
    single = words + EMOJI + SPACES + CODE + DIGITS + CONTRACTIONS + MARKS + PUNCTUATION
    sentences = [" ".join(script) for script in WORDS.values()]
    long = ["a" * 3000, "ab" * 700, "é" * 600, "字" * 400, " " * 900, "\n" * 300, "😀" * 200, "0" * 999,
            "x" + "\u0301" * 200, "Donaudampfschiff" * 60, "' " * 200, "!" * 500, " \n" * 150]
    return ["", *single, *sentences, *long]


def strings(seed: int, count: int, most_pieces: int = 8) -> list[str]:
    """`count` strings: the fixed ones, then random ones."""
    rng = random.Random(seed)
    plain = fixed_strings()
    while len(plain) < count:
        plain.append(random_string(rng, most_pieces))
    return plain


def broken_bytes(seed: int, count: int) -> list[tuple[bytes, UnicodeDecodeError]]:
    """Bytes that are not UTF-8, and what decode() raises for them: each kind of fault, then random cuts and
    insertions."""
    rng = random.Random(seed)
    broken = [b"\xff", b"\x80", b"a\xc3", b"\xc3(", b"\xe2\x82", b"\xe2(\xa1", b"\xf0\x9f\x98", b"\xf0\x9f(\x80",
              b"\xc0\xaf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe0\x80\x80",
              b"\xf0\x80\x80\x80", b"\xfe\xff", b"abc\xe4\xbd", b"\xe4\xbd\xe4\xbd\xa0", b"\xf8\x88\x80\x80\x80"]
    found = []
    while len(found) < count:
        data, edits = (broken.pop(0), 0) if broken else (random_string(rng, 5).encode(), rng.randrange(1, 4))
        data = bytearray(data)
        for _ in range(edits):
            at = rng.randrange(len(data) + 1)
            if rng.random() < 0.5 and at < len(data):
                del data[at]
            else:
                data.insert(at, rng.randrange(256))
        try:
            data.decode()
        except UnicodeDecodeError as fault:
            found.append((bytes(data), fault))
    return found
