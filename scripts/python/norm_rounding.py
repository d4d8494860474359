"""What the rounding of the Q and K norms does to the embedded model, by transformers on the CPU.

transformers rounds the normalised value to bf16, multiplies by the norm weight and rounds again. A known bug keeps
it in fp32 until after the weight. This prints how far each is from fp32, and at how few bits of the mantissa the
answers go wrong.
"""

import random

import torch
import transformers
from tokenizers import Tokenizer

import logit_error
import lookup_task as task

LENGTHS = (512, 4096)


class RoundedNorm(torch.nn.Module):
    """An RMSNorm whose result has `bits` bits after the leading one; None: bf16, and one rounding alone."""
    def __init__(self, norm, bits):
        super().__init__()
        self.norm, self.bits = norm, bits

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.norm.variance_epsilon)
        wide = wide * self.norm.weight.float()
        if self.bits is not None:
            mantissa, exponent = torch.frexp(wide)
            scale = 2.0 ** (self.bits + 1)
            wide = torch.ldexp((mantissa * scale).round() / scale, exponent)
        return wide.to(x.dtype)


def load(directory, dtype, bits=()):
    """`bits`: () as transformers does, else (b,) for a RoundedNorm."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager").eval()
    for layer in model.model.layers if bits else ():
        layer.self_attn.q_norm = RoundedNorm(layer.self_attn.q_norm, *bits)
        layer.self_attn.k_norm = RoundedNorm(layer.self_attn.k_norm, *bits)
    return model


def questions(directory, seed, length, count, context_of):
    """(ids of a context, ids of a question and its answer, tokens of the answer) of `count` questions."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    rng = random.Random(seed)
    facts, ids = context_of(tokenizer, rng, length, chat=False)
    tails = []
    for name, code in rng.sample(facts, min(count, len(facts))):
        answer = tokenizer.encode(f" {task.fact(name, code)}{task.END_OF_TURN}").ids
        tails.append((tokenizer.encode(f" {task.QUESTIONS[0].format(name)}").ids + answer, len(answer)))
    return ids, tails


@torch.inference_mode()
def logits_of(model, ids, tails):
    """Logits [questions, tokens of an answer, vocabulary] along the right answers."""
    cache = transformers.DynamicCache(config=model.config)
    model(torch.tensor([ids]), past_key_values=cache, logits_to_keep=1)
    cache.batch_repeat_interleave(len(tails))
    rows = model(torch.tensor([tail for tail, _ in tails]), past_key_values=cache).logits.float()
    return rows[:, -1 - tails[0][1]:-1]


def report(directory, count, seed, context_of):
    """Prints a line a rounding and length."""
    forms = {"fp32": (torch.float32, ()), "bf16, as transformers": (torch.bfloat16, ()),
             "bf16, rounded after the weight alone": (torch.bfloat16, (None,))}
    forms |= {f"fp32, Q and K to {bits} bits": (torch.float32, (bits,)) for bits in range(7, -1, -1)}
    models = {name: load(directory, *form) for name, form in forms.items()}
    for length in LENGTHS:
        ids, tails = questions(directory, seed, length, count, context_of)
        wanted = torch.tensor([tail[-size:] for tail, size in tails])
        exact = None
        print(f"{length} tokens, {len(tails)} questions: relative error of the logits, top-1 as in fp32, right answers")
        for name, model in models.items():
            logits = logits_of(model, ids, tails)
            exact = logits if exact is None else exact
            print(f"  {name:38} {logit_error.relative_l2(logits, exact):.5f}  "
                  f"{logit_error.top1_agreement(logits, exact):8.2%}  "
                  f"{(logits.argmax(-1) == wanted).all(-1).float().mean().item():8.2%}", flush=True)
