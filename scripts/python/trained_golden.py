"""Writes what transformers generates with trained weights; scripts/maintain/trained_golden runs it.

harness/tests/golden/README.md describes the format.
"""

import json
import sys

import torch
import transformers

import maker_arguments

GOLDEN = maker_arguments.ROOT / "harness" / "tests" / "golden" / "smollm2-135m.json"
STEPS = 32
TOP = 4
TEXTS = [
    "The capital of France is", "Once upon a time, there was a little girl who", "def fibonacci(n):\n",
    "The mitochondria is the", "To make a good cup of coffee, you", "1, 2, 3, 4, 5, 6,",
    "In 1969, Neil Armstrong became the first", "import numpy as np\n\nx = np.",
    "The three primary colours are red,", "Water boils at 100 degrees", "Dear Sir or Madam,\n\nI am writing to",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen", "今天天气很好，",
]
CHATS = [
    ["What is the capital of Germany?"], ["Write a haiku about rain."], ["What is 12 + 30?"],
    ["List three fruits."], ["Translate 'good morning' to French."],
    ["Who wrote Romeo and Juliet?", "William Shakespeare wrote Romeo and Juliet.", "When was he born?"],
    ["My name is Ada.", "Hello Ada! How can I help you today?", "What is my name?"],
]


def chat(turns):
    """The messages of these turns, of which the user has the first."""
    return [{"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)]


def logits_along(model, prompt, tokens):
    """The logits that choose each of the tokens, in float32."""
    ids = torch.tensor([prompt + tokens[:-1]])
    with torch.no_grad():
        return model(ids, use_cache=False).logits[0, len(prompt) - 1 :].float()


def greedy(model, prompt):
    """STEPS tokens, end of turn or not."""
    ids, cache, tokens = torch.tensor([prompt]), None, []
    with torch.no_grad():
        for _ in range(STEPS):
            out = model(ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            tokens.append(int(out.logits[0, -1].argmax()))
            ids = torch.tensor([tokens[-1:]])
    return tokens


def margins(logits, tokens):
    """How far the logit of the chosen token is above the best other one."""
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    others = logits.scatter(1, torch.tensor(tokens)[:, None], float("-inf")).max(1).values
    return chosen - others


def case(tokenizer, model, bf16, prompt):
    """One prompt, a text or a list of turns: its text and ids, the greedy tokens, the largest logits, and how far
    bf16 moves a margin."""
    is_chat = isinstance(prompt, list)
    text = tokenizer.apply_chat_template(chat(prompt), tokenize=False, add_generation_prompt=True) if is_chat else prompt
    ids = tokenizer.encode(text, add_special_tokens=not is_chat)
    tokens = greedy(model, ids)
    logits = logits_along(model, ids, tokens)
    rounded = logits_along(bf16, ids, tokens)
    best = logits.topk(TOP, 1)
    margin = margins(logits, tokens)
    shift = (margins(rounded, tokens) - margin).abs().max()
    return {"messages" if is_chat else "text": chat(prompt) if is_chat else text,
            **({"rendered": text} if is_chat else {}), "prompt_ids": ids, "tokens": tokens,
            "continuation": tokenizer.decode(tokens, skip_special_tokens=False),
            "margins": [round(value, 4) for value in margin.tolist()],
            "top_ids": best.indices.tolist(),
            "top_logits": [[round(value, 5) for value in row] for row in best.values.tolist()],
            "bf16_margin_shift": round(float(shift), 4)}


def golden(folder):
    """The contents of the golden file."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, bf16 = (transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
                   for dtype in (torch.float32, torch.bfloat16))
    cases = [case(tokenizer, model, bf16, prompt) for prompt in [*TEXTS, *CHATS]]
    return {"format": 1, "model": "smollm2-135m", "origin": json.loads((folder / "origin.json").read_text()),
            "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
            "bf16_margin_shift": max(one["bf16_margin_shift"] for one in cases), "cases": cases}


def same(ours, made):
    """Whether everything but rounding is equal."""
    keys = ("prompt_ids", "tokens", "continuation")
    return ours["origin"] == made["origin"] and len(ours["cases"]) == len(made["cases"]) and all(
        one[key] == other[key] for one, other in zip(ours["cases"], made["cases"]) for key in keys) and all(
            abs(a - b) < 1e-3 for one, other in zip(ours["cases"], made["cases"])
            for rows in zip(one["top_logits"], other["top_logits"]) for a, b in zip(*rows))


def main():
    arguments = maker_arguments.trained_golden()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made = golden(arguments.model)
    if arguments.check:
        equal = same(json.loads(GOLDEN.read_text(encoding="utf-8")), made)
        print(f"trained_golden: the committed file {'is' if equal else 'differs from'} what this machine makes")
        return 0 if equal else 1
    cases = ",\n".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in made.pop("cases"))
    head = json.dumps(made, separators=(",", ":"))[:-1]
    GOLDEN.write_text(f'{head},"cases":[\n{cases}\n]}}\n', encoding="utf-8")
    least = min(min(one["margins"]) for one in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"])
    print(f"{len(TEXTS) + len(CHATS)} prompts, {STEPS} tokens each, smallest margin {least}, "
          f"bf16 moves a margin by at most {made['bf16_margin_shift']}; {GOLDEN.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
