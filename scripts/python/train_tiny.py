"""Trains the embedded model, writes it as a Hugging Face checkpoint, and says how often it is right."""

import json
import math
import random
import shutil
import sys
import time

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer

import lookup_task as task
import maker_arguments
import random_checkpoint

LEAST_RIGHT = 0.99  # share of the answers at each length
MAX_CONTEXT = 4096
ANSWER = 12  # tokens of an answer: the fact and the end of the turn
CODE = slice(6, 10)  # the digits in it
NAME = 3


class Batch:
    """Texts, padded to `length`.

    ids [B, length]; rows [B, answers x ANSWER]: the positions that predict an answer's tokens; targets: those tokens;
    places: where the context has what they copy, otherwise -1; names [B, length]: where the name is that a token is
    about.
    """
    def __init__(self, texts, length):
        count = max(len(answers) for _, answers, _ in texts)
        self.ids = torch.zeros(len(texts), length, dtype=torch.long)
        self.rows = torch.zeros(len(texts), count * ANSWER, dtype=torch.long)
        self.targets = torch.full_like(self.rows, -100)
        self.places = torch.full_like(self.rows, -1)
        self.names = torch.full_like(self.ids, -1)
        for i, (ids, answers, names) in enumerate(texts):
            self.ids[i, :len(ids)] = torch.tensor(ids)
            for end, name in names:
                self.names[i, end - 7:end - 1] = name  # from "is" to the last digit
            for j, (begin, question, found) in enumerate(answers):
                at = slice(j * ANSWER, (j + 1) * ANSWER)
                self.rows[i, at] = torch.arange(begin - 1, begin + ANSWER - 1)
                self.targets[i, at] = torch.tensor(ids[begin:begin + ANSWER])
                self.places[i, j * ANSWER + NAME] = question
                self.names[i, begin + NAME - 1] = question
                self.places[i, j * ANSWER + CODE.start:j * ANSWER + CODE.stop] = torch.arange(found, found + 4)


class Texts:
    """Draws training texts."""
    def __init__(self, tokenizer, seed):
        self.tokenizer = tokenizer
        self.rng = random.Random(seed)
        self.known = {}

    def encode(self, piece):
        if len(piece) > 40:
            return self.tokenizer.encode(piece).ids
        if piece not in self.known:
            if len(self.known) > 200_000:
                self.known.clear()
            self.known[piece] = self.tokenizer.encode(piece).ids
        return self.known[piece]

    def draw(self, length, share):
        """A text with about `share` of its tokens in questions and answers: (ids, answers, names). Each answer is
        (begin, name in the question, code in the fact); names has (end, name in it) of each fact and answer.
        """
        rng = self.rng
        asked = max(1, int(share * length / 28))
        chat = rng.random() < 0.5
        others = rng.choice([0, 0, 0.05, 0.2])
        facts = max(1, int((length - 30 * asked - 30) / (12.2 + 8 * others)))
        if rng.random() < 0.3:  # short texts are among the long ones
            facts = min(facts, rng.choice([1, 1, 2, 3, 5, 10, 40]))
        while True:
            stated = [(name, task.random_code(rng)) for name in rng.sample(task.NAMES, facts)]
            wanted = [rng.choice(stated)[0] for _ in range(asked)]
            ids, answers, names, places, question = [], [], [], {}, 0
            for piece in task.conversation(rng, stated, wanted, chat, others):
                more = self.encode(piece.text)
                if piece.question:
                    question = len(ids) + more.index(self.encode(f" {piece.name}")[0])
                elif piece.answer:
                    answers.append((len(ids), question, places[piece.name]))
                elif piece.name:
                    places[piece.name] = len(ids) + len(more) - 5
                ids += more
                if piece.name and not piece.question:
                    names.append((len(ids), len(ids) - 8))
            if len(ids) <= length:
                return ids, answers, names
            facts -= max(1, (len(ids) - length) // 11)

    def batch(self, count, length):
        share = self.rng.choice([0.4, 0.4, 0.2]) if length > 512 else 0.45
        return Batch([self.draw(length, share) for _ in range(count)], length)


def make_config(tokenizer):
    return transformers.Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=MAX_CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7}, tie_word_embeddings=True, rms_norm_eps=1e-6,
        bos_token_id=None, eos_token_id=tokenizer.token_to_id(task.END_OF_TURN),
        pad_token_id=tokenizer.token_to_id(task.END_OF_TEXT), dtype=torch.float32)


def initialise(model):
    """Queries and keys of the last layer start with equal weights, so that it starts by looking for tokens like the
    current one."""
    config = model.config
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.3)
    for index, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, layer.mlp.gate_proj, layer.mlp.up_proj):
            torch.nn.init.normal_(linear.weight, std=config.hidden_size ** -0.5)
        torch.nn.init.normal_(attention.o_proj.weight, std=0.5 * attention.o_proj.in_features ** -0.5)
        torch.nn.init.normal_(layer.mlp.down_proj.weight, std=0.3 * config.intermediate_size ** -0.5)
        torch.nn.init.constant_(attention.q_norm.weight, 1.5)
        torch.nn.init.constant_(attention.k_norm.weight, 1.5)
        if index == config.num_hidden_layers - 1:
            keys = attention.k_proj.weight.view(config.num_key_value_heads, config.head_dim, -1)
            group = config.num_attention_heads // config.num_key_value_heads
            attention.q_proj.weight.data.copy_(keys.repeat_interleave(group, 0).flatten(0, 1))
    torch.nn.init.constant_(model.model.norm.weight, 0.5)


class Forward:
    """The forward pass of a Qwen3 model whose last layer runs only at the rows that predict answers."""
    def __init__(self, model):
        self.model = model.model
        self.config = model.config
        half = self.config.head_dim // 2
        theta = self.config.rope_parameters["rope_theta"]
        angles = torch.outer(torch.arange(MAX_CONTEXT), theta ** (-torch.arange(half) / half))
        self.cos, self.sin = angles.cos(), angles.sin()

    def norm(self, x, norm):
        return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)

    def rope(self, x, positions):  # x [B, heads, S, D], positions [S] or [B, S]
        cos, sin = self.cos[positions], self.sin[positions]
        if positions.dim() == 2:
            cos, sin = cos[:, None], sin[:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(self, x, linear, norm=None):
        y = linear(x).unflatten(-1, (-1, self.config.head_dim))
        return (self.norm(y, norm) if norm else y).transpose(1, 2)

    def __call__(self, batch, guided):
        """Logits [rows, vocabulary] and the last layer's attention [B, heads, rows, S]."""
        x = self.model.embed_tokens(batch.ids)
        positions = torch.arange(x.shape[1])
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        weights = first = None
        for layer in self.model.layers:
            last = layer is self.model.layers[-1]
            attention = layer.self_attn
            normed = self.norm(x, layer.input_layernorm)
            k = self.rope(self.heads(normed, attention.k_proj, attention.k_norm), positions)
            v = self.heads(normed, attention.v_proj)
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            if last:
                index = batch.rows[..., None].expand(-1, -1, x.shape[-1])
                x, normed = x.gather(1, index), normed.gather(1, index)
            q = self.rope(self.heads(normed, attention.q_proj, attention.q_norm), batch.rows if last else positions)
            if layer is self.model.layers[0] and guided:
                scores = (q[:, :1] @ k[:, :1].transpose(-1, -2))[:, 0] * self.config.head_dim ** -0.5
                first = scores.masked_fill(positions > positions[:, None], -math.inf).log_softmax(-1)
            if last:
                scores = q @ k.transpose(-1, -2) * self.config.head_dim ** -0.5
                later = positions > batch.rows[..., None]
                weights = scores.masked_fill(later[:, None], -math.inf).softmax(-1)
                mixed = weights @ v
            else:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            normed = self.norm(x, layer.post_attention_layernorm)
            mlp = layer.mlp
            x = x + mlp.down_proj(F.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))
        return self.norm(x, self.model.norm) @ self.model.embed_tokens.weight.T, weights, first


def losses(logits, weights, first, batch):
    """The loss of the tokens, the loss of where the layers look, and the share of right answers."""
    loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100)
    places = batch.places[:, None, :, None].expand(-1, weights.shape[1], -1, -1)
    seen = weights.gather(-1, places.clamp(min=0)).squeeze(-1).mean(1)
    look = -(seen + 1e-6).log()[batch.places >= 0].mean()
    if first is not None:
        there = batch.names >= 0
        look = look - first.gather(-1, batch.names.clamp(min=0)[..., None]).squeeze(-1)[there].mean()
    right = (logits.argmax(-1) == batch.targets).unflatten(1, (-1, ANSWER)).all(-1)
    there = batch.targets.unflatten(1, (-1, ANSWER))[..., 0] >= 0
    return loss, look, right[there].float().mean()


# Length of the texts, texts per step, steps at --effort 1, learning rate at the end of the stage.
STAGES = ((160, 16, 500, 3e-3), (512, 6, 300, 2e-3), (1024, 3, 200, 1e-3), (2048, 2, 200, 5e-4), (4096, 1, 250, 1e-4))
SHORT = (12, 160)  # number and length of the texts that go with each step of the later stages
LOOK = 0.3  # weight of the loss that says where to look
GUIDED_LENGTH = 512  # in longer texts the first layer is not told where to look


def train(model, tokenizer, arguments):
    """Adam over the stages; the learning rate is interpolated linearly from one stage's to the next's."""
    forward, texts = Forward(model), Texts(tokenizer, arguments.seed)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    began, rate_before = time.monotonic(), STAGES[0][3]
    for length, count, steps, rate in STAGES:
        steps = max(1, round(steps * arguments.effort))
        right = 0.0
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate_before + (rate - rate_before) * step / steps
            if length == STAGES[0][0]:
                optimizer.param_groups[0]["lr"] *= min(1, (step + 1) / 50)
            optimizer.zero_grad()
            shapes = [SHORT] * (length > SHORT[1]) + [(count, length)]
            for shape in shapes:
                batch = texts.batch(*shape)
                loss, look, share = losses(*forward(batch, shape[1] <= GUIDED_LENGTH), batch)
                ((loss + LOOK * look) / len(shapes)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            right = 0.95 * right + 0.05 * share.item() if step else share.item()
            if (step + 1) % 50 == 0 or step + 1 == steps:
                print(f"train_tiny: {length:5} tokens, step {step + 1:5} of {steps}: loss {loss.item():.4f}, "
                      f"{right:7.2%} of the answers right, {time.monotonic() - began:.0f} s", flush=True)
        rate_before = rate


@torch.no_grad()
def spread_key_norms(model, seed):
    """Gives the K-norm weights the spread of published Qwen3 models, whose largest is 96.5.

    A channel's K-norm weight is multiplied and its Q-norm weight divided by the same factor, which is equal for the
    two channels that RoPE rotates together, so that the model computes what it did before.
    """
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        q_norm, k_norm = layer.self_attn.q_norm.weight, layer.self_attn.k_norm.weight
        largest = k_norm.abs().unflatten(0, (2, -1)).amax(0)
        low, high = random_checkpoint.K_NORM_RANGE
        wanted = low * (high / low) ** torch.rand(largest.shape, generator=generator)
        wanted[torch.randperm(len(wanted), generator=generator)[:random_checkpoint.K_NORM_AT_TOP]] = high
        factor = (wanted / largest).repeat(2)
        k_norm *= factor
        q_norm /= factor


def save(model, tokenizer, directory):
    """Writes weights in bf16 and the files that a published Qwen3 model has. They replace what was there at the end."""
    final, directory = directory, directory.with_name(directory.name + ".new")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    model.to(torch.bfloat16).save_pretrained(directory)
    random_checkpoint.to_hub_config(directory)
    (directory / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "add_bos_token": False, "clean_up_tokenization_spaces": False, "eos_token": task.END_OF_TURN,
        "model_max_length": MAX_CONTEXT, "pad_token": task.END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": task.CHAT_TEMPLATE}, indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps({
        "do_sample": False, "eos_token_id": tokenizer.token_to_id(task.END_OF_TURN),
        "pad_token_id": tokenizer.token_to_id(task.END_OF_TEXT)}, indent=2) + "\n")
    for path in directory.iterdir():
        path.chmod(0o644)
    shutil.rmtree(final, ignore_errors=True)
    directory.rename(final)


LENGTHS = (32, 48, 64, 96, 128, 256, 512, 1024, 2048, 3072, 4096)
DEPTHS = 4
QUESTIONS_AT_A_TIME = 16


def context_of(tokenizer, rng, length, chat):
    """(facts, ids): as many facts as fit into `length` tokens with a question and its answer, but at least one."""
    room = length - (31 if chat else 20)
    begin = f"{task.TURN}system\n" if chat else ""
    facts, text, ids = [], begin, []
    for name in rng.sample(task.NAMES, len(task.NAMES)):
        one = (name, task.random_code(rng))
        longer = text + (rng.choice(" \n") if facts else "") + task.fact(*one)
        if facts and len(ids) + 12 > room:
            break
        more = tokenizer.encode(longer[len(text):]).ids if facts else tokenizer.encode(longer).ids
        facts, text, ids = facts + [one], longer, ids + more
    assert ids == tokenizer.encode(text).ids
    return facts, ids


@torch.inference_mode()
def evaluate(directory, dtype, questions, seed):
    """Prints the share of exact answers by length of the context and depth of the fact; returns the worst length's.

    An answer counts if each of its tokens, the end of the turn included, is the one that the model finds most likely.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="sdpa").eval()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    rng = random.Random(seed)
    print(f"train_tiny: {dtype}: context tokens, right answers by depth from beginning to end, all, questions")
    worst = 1.0
    for length in LENGTHS:
        right, asked = [0] * DEPTHS, [0] * DEPTHS
        while sum(asked) < questions:
            chat = rng.random() < 0.5
            facts, ids = context_of(tokenizer, rng, length, chat)
            depths = [rng.randrange(len(facts)) for _ in range(QUESTIONS_AT_A_TIME)]
            tails, answers = [], []
            for at in depths:
                name, code = facts[at]
                question = task.QUESTIONS[0].format(name)
                tail = (f"{task.END_OF_TURN}\n{task.TURN}user\n{question}{task.END_OF_TURN}\n{task.TURN}assistant\n"
                        if chat else f" {question}")
                answers.append(tokenizer.encode(("" if chat else " ") + task.fact(name, code) + task.END_OF_TURN).ids)
                tails.append(tokenizer.encode(tail).ids + answers[-1])
            cache = transformers.DynamicCache(config=model.config)
            model(torch.tensor([ids]), past_key_values=cache, logits_to_keep=1)
            cache.batch_repeat_interleave(len(tails))
            drawn = model(torch.tensor(tails), past_key_values=cache).logits.argmax(-1)
            for at, answer, row in zip(depths, answers, drawn.tolist()):
                depth = at * DEPTHS // len(facts)
                asked[depth] += 1
                right[depth] += row[-1 - len(answer):-1] == answer
        shares = [f"{r / a:8.2%}" if a else "       -" for r, a in zip(right, asked)]
        print(f"  {length:5} {' '.join(shares)} {sum(right) / sum(asked):8.2%} {sum(asked):6}", flush=True)
        worst = min(worst, sum(right) / sum(asked))
    return worst


def main():
    arguments = maker_arguments.train_tiny()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    unseen = arguments.seed + 1_000_000
    if not arguments.evaluate:
        tokenizer = task.make_tokenizer()
        model = transformers.Qwen3ForCausalLM(make_config(tokenizer))
        initialise(model)
        train(model, tokenizer, arguments)
        spread_key_norms(model, arguments.seed)
        save(model, tokenizer, arguments.out)
    worst = min(evaluate(arguments.out, dtype, arguments.questions, unseen)
                for dtype in (torch.float32, torch.bfloat16))
    if worst < LEAST_RIGHT:
        sys.exit(f"train_tiny: {worst:.2%} of the answers are right at the worst length, not {LEAST_RIGHT:.0%}")


if __name__ == "__main__":
    main()
