"""Inputs and outputs of an operation over rotating buffer sets, and what its outputs must be: PyTorch computes a sample
of them in float32. The bounds are as wide as the suite's for fused sums (benches/tensors.h), whatever the operation, and
the root mean square of a row's errors may be as large a share of them as the suite allows for sums: libraries round
elsewhere than we do. Attention that rounds weights, parts of the context and outputs to bf16 reaches 0.11 in the worst
of 100 simulated rows."""
import itertools
import math
import random

from peers import shapes
from peers.measure import WRONG

NORM_EPS = 1e-6
SPREAD = 2.0  # random values are uniform in (-SPREAD, SPREAD)
EPSILON = {"bf16": 2.0**-7, "f16": 2.0**-10}
ULPS = 4
RMS_SHARE = 0.25  # of its bounds, that the errors of a row may be in the root mean square
LEAST_COLUMNS = 64  # of a row for that: shorter ones may consist of rare elements only
STEPS = 2  # of operations that are several kernels, which round one after the other
MIN_LOG2_SCALE = -6
ROPE_BASE = 1e6


class Inputs:
    """The base of all: tensors whose first dimension is the buffer set."""
    def __init__(self, bench):
        self.torch, self.shape, self.sets, self.place = bench.torch, bench.shape, bench.sets, bench.place
        self.dtype, self.epsilon = bench.dtype, EPSILON[bench.row["dtype"]]
        self.shared_bytes = self._rotating_bytes = 0
        self._random, self._seed = [], 0
        self._generator = self.torch.Generator(device=self.place)
        self._picks = random.Random(5)

    @property
    def memory_bytes(self):
        return self._rotating_bytes // self.sets + self.shared_bytes

    def _make(self, shape, dtype):
        tensor = self.torch.empty((self.sets, *shape), dtype=dtype or self.dtype, device=self.place)
        self._rotating_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def random(self, *shape, dtype=None, spread=SPREAD):
        tensor = self._make(shape, dtype)
        self._random.append((tensor, spread))
        return tensor

    def output(self, *shape, dtype=None):
        return self._make(shape, dtype)

    def table(self, values, dtype=None):
        """A tensor that all sets share; int32 unless another dtype is given."""
        tensor = self.torch.tensor(values, dtype=dtype or self.torch.int32, device=self.place)
        self.shared_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def weight(self, out_features, in_features):
        """Scaled so that a projection keeps the scale of its input."""
        log2_scale = max(round(math.log2(in_features) / -2), MIN_LOG2_SCALE)
        return self.random(out_features, in_features, spread=SPREAD * 2.0**log2_scale)

    def refill(self, seed):
        self._seed = seed
        self._generator.manual_seed(seed)
        for tensor, spread in self._random:
            tensor.uniform_(-spread, spread, generator=self._generator)

    def restore(self):
        """Fills the inputs as the last refill did, after launches overwrote them."""
        self.refill(self._seed)

    def picked(self, count, wanted):
        return shapes.pick(count, wanted, self._picks.randrange(2**30))

    def compare(self, actual, expected, steps=1):
        """The largest error in units of its bound: four units in the last place plus two epsilons of the root
        mean square of the row, `steps` times that where a library's kernels round between them. Or, if that is more,
        the root mean square of a row's errors in those units, over RMS_SHARE."""
        torch = self.torch
        expected, actual = expected.float(), actual.float()
        _, exponent = torch.frexp(expected)
        ulp = torch.ldexp(torch.full_like(expected, self.epsilon), exponent - 1)
        bound = steps * (ULPS * ulp + 2 * self.epsilon * expected.square().mean(-1, keepdim=True).sqrt())
        over = (actual - expected).abs() / bound.clamp_min(1e-30)
        if not over.numel():
            return WRONG
        over = over.nan_to_num(nan=WRONG, posinf=WRONG)
        worst = float(over.max())
        if over.shape[-1] >= LEAST_COLUMNS:
            worst = max(worst, min(float(over.square().mean(-1).sqrt().max()) / RMS_SHARE, WRONG))
        return worst

    def same(self, actual, expected):
        """0 where all bits are equal."""
        same = actual.shape == expected.shape and actual.dtype == expected.dtype and self.torch.equal(actual, expected)
        return 0.0 if same else WRONG

    def norm(self, x, weight):
        """RMSNorm in float32."""
        wide = x.float()
        return wide * self.torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS) * weight.float()


class AttentionInputs(Inputs):
    """Queries and a pool of keys and values. Layouts: "hnd" [page, 2, head, slot, dim], "nhd" [2, page, slot, head,
    dim], and "contiguous" [2, sequence, token, head, dim], which has no pages."""
    def __init__(self, bench, layout):
        super().__init__(bench)
        shape, self.layout = self.shape, layout
        self.batch = batch = shapes.attention_batch(bench.row["kernel"], shape)
        self.hq, self.hk, self.head_dim = shape.get("hq", 0), shape["hk"], shape["head_dim"]
        self.q_starts = [0, *itertools.accumulate(batch.q_lengths)]
        pool = {"hnd": (batch.num_pages, 2, self.hk, batch.page_size, self.head_dim),
                "nhd": (2, batch.num_pages, batch.page_size, self.hk, self.head_dim),
                "contiguous": (2, len(batch.lengths), max(batch.lengths), self.hk, self.head_dim)}[layout]
        if self.hq:
            self.q = self.random(self.q_starts[-1], self.hq, self.head_dim)
            self.out = self.output(self.q_starts[-1], self.hq, self.head_dim)
        self.kv = self.random(*pool)
        if layout == "contiguous":
            return
        pages = [batch.pages(i) for i in range(len(batch.lengths))]
        most = max(map(len, pages))
        self.kv_indptr = self.table([0, *itertools.accumulate(map(len, pages))])
        self.kv_indices = self.table([page for own in pages for page in own])
        self.last_page = self.table([batch.last_page_length(length) for length in batch.lengths])
        self.page_table = self.table([own + [0] * (most - len(own)) for own in pages])
        self.lengths = self.table(batch.lengths)
        self.q_indptr = self.table(self.q_starts)

    def sequence(self, index, sequence):
        """(K, V) [token, head, dim] of a sequence in a buffer set."""
        batch, pool, length = self.batch, self.kv[index], self.batch.lengths[sequence]
        if self.layout == "contiguous":
            return pool[0, sequence, :length], pool[1, sequence, :length]
        if not batch.whole_shared_pages:
            raise ValueError("the shared tokens end within a page")
        pages = self.torch.tensor(batch.pages(sequence), device=self.place)
        both = pool[pages].permute(1, 0, 3, 2, 4) if self.layout == "hnd" else pool[:, pages]
        both = both.reshape(2, -1, self.hk, self.head_dim)
        return both[0, :length], both[1, :length]

    def error(self, index, outputs):
        out = outputs[0].reshape(-1, self.hq, self.head_dim)
        worst = 0.0
        for sequence in self.picked(len(self.batch.lengths), 3):
            first, count = self.q_starts[sequence], self.batch.q_lengths[sequence]
            rows = self.picked(count, 4)
            past = self.batch.lengths[sequence] - count
            at = self.torch.tensor([first + row for row in rows], device=self.place)
            contexts = self.torch.tensor([past + row + 1 for row in rows], device=self.place)
            expected = self.attention(self.q[index][at], *self.sequence(index, sequence), contexts)
            worst = max(worst, self.compare(out[at], expected))
        return worst

    def attention(self, q, k, v, contexts):
        """Rows of q [row, head, dim], each over the first contexts[row] tokens of k and v, in float32."""
        rows, group = q.shape[0], self.hq // self.hk
        q = q.float().view(rows, self.hk, group, self.head_dim).permute(1, 2, 0, 3)
        scores = q.reshape(self.hk, group * rows, self.head_dim) @ k.float().permute(1, 2, 0)
        scores = (scores * self.head_dim**-0.5).view(self.hk, group, rows, -1)
        beyond = self.torch.arange(k.shape[0], device=self.place)[None] >= contexts[:, None]
        weights = scores.masked_fill(beyond, float("-inf")).softmax(-1)
        out = weights.reshape(self.hk, group * rows, -1) @ v.float().transpose(0, 1)
        return out.view(self.hk, group, rows, self.head_dim).permute(2, 0, 1, 3).reshape(rows, self.hq, self.head_dim)


class GatherInputs(AttentionInputs):
    """A pool, and the page and row of each token of the batch."""
    def __init__(self, bench, layout):
        super().__init__(bench, layout)
        batch = self.batch
        pages = [batch.pages(sequence)[token // batch.page_size]
                 for sequence, length in enumerate(batch.lengths) for token in range(length)]
        rows = [token % batch.page_size for length in batch.lengths for token in range(length)]
        self.token_pages = self.table(pages, self.torch.int64)
        self.token_rows = self.table(rows, self.torch.int64)

    def error(self, index, outputs):
        picks = self.torch.tensor(self.picked(len(self.token_pages), 256), device=self.place)
        pages, rows = self.token_pages[picks], self.token_rows[picks]
        return max(self.same(out[picks], self.kv[index][pages, part, :, rows]) for part, out in enumerate(outputs))

    def pages_error(self, index, outputs):
        """The error of an operation that gathers whole pages: the same bytes in the order of the pool."""
        picks = self.torch.tensor(self.picked(len(self.kv_indices), 16), device=self.place)
        return self.same(outputs[0][picks], self.kv[index][self.kv_indices[picks].long()])


class AppendInputs(Inputs):
    """New keys and values (and with `fused` queries), norm weights, RoPE, and a pool that they go to."""
    def __init__(self, bench, _, batch=None, fused=None):
        super().__init__(bench)
        torch, shape = self.torch, self.shape
        self.batch = batch = batch or shapes.append_batch(shape["tokens"], shape["sequences"], shape["page_size"])
        self.fused = shape["qk_norm_rope"] if fused is None else fused
        self.hq, self.hk, self.head_dim = shape["hq"], shape["hk"], shape["head_dim"]
        self.pool = self.output(batch.num_pages, 2, self.hk, batch.page_size, self.head_dim)
        self.pages = self.table(batch.pages, torch.int64)
        self.rows = self.table(batch.rows, torch.int64)
        if self.fused:
            self.q_norm, self.k_norm = self.random(self.head_dim), self.random(self.head_dim)
            half = self.head_dim // 2
            frequencies = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64, device=self.place) / half)
            positions = torch.arange(1 + max(batch.positions), dtype=torch.float64, device=self.place)
            angles = positions[:, None] * frequencies
            self.cos, self.sin = angles.cos().float(), angles.sin().float()
            self.positions = self.table(batch.positions, torch.int64)
            self.shared_bytes += 2 * self.cos.numel() * 4

    def make_tokens(self):
        tokens = len(self.batch.pages)
        if self.fused:
            self.q = self.random(tokens, self.hq, self.head_dim)
        self.k = self.random(tokens, self.hk, self.head_dim)
        self.v = self.random(tokens, self.hk, self.head_dim)
        return self

    def tokens_of(self, index):
        """(q or None, k, v) of a buffer set before norm and RoPE."""
        return self.q[index] if self.fused else None, self.k[index], self.v[index]

    def rotated(self, x, weight, tokens):
        """QK-norm and RoPE in float32."""
        cos, sin = (table[self.positions[tokens]][:, None] for table in (self.cos, self.sin))
        low, high = self.norm(x, weight).chunk(2, -1)
        return self.torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def error(self, index, outputs):
        """outputs: the pool, and with `fused` the queries."""
        pool, q, k, v = outputs[0], *self.tokens_of(index)
        worst = 0.0
        if self.fused:
            tokens = self.torch.tensor(self.picked(len(self.batch.pages), 32), device=self.place)
            worst = self.compare(outputs[1][tokens], self.rotated(q[tokens], self.q_norm[index], tokens), STEPS)
        for page in self.picked(self.batch.num_pages, 4):
            tokens = self.batch.tokens_of(page)
            rows = self.torch.tensor([self.batch.rows[token] for token in tokens], device=self.place)
            tokens = self.torch.tensor(tokens, device=self.place)
            for part, new in enumerate((k, v)):
                written, expected = pool[page, part][:, rows].transpose(0, 1), new[tokens]
                if self.fused and part == 0:
                    expected = self.rotated(expected, self.k_norm[index], tokens)
                worst = max(worst, self.compare(written, expected, STEPS) if self.fused
                            else self.same(written, expected))
                untouched = self.torch.ones(self.batch.page_size, dtype=self.torch.bool, device=self.place)
                untouched[rows] = False
                if not bool(pool[page, part][:, untouched].isnan().all()):  # a row where none belongs
                    worst = WRONG
        return worst


class QkvInputs(AppendInputs):
    """Rows, a norm weight and the weights of Q, K and V; with "append" also a pool."""
    def __init__(self, bench, layout):
        shape = bench.shape
        self.append = shape["append"]
        batch = shapes.append_batch(shape["tokens"], shape["tokens"], shapes.QKV_PAGE_SIZE)
        if self.append:
            super().__init__(bench, layout, batch, fused=True)
        else:
            Inputs.__init__(self, bench)
        self.heads = [shape["hq"], shape["hk"], shape["hk"]]
        features = sum(self.heads) * shape["head_dim"]
        self.x, self.norm_weight = self.random(shape["tokens"], shape["hidden"]), self.random(shape["hidden"])
        self.projection = self.weight(features, shape["hidden"])
        self.qkv = self.output(shape["tokens"], features)

    def split(self, qkv):
        """(q, k, v) [token, head, dim] of rows of qkv."""
        return qkv.view(qkv.shape[0], -1, self.shape["head_dim"]).split(self.heads, 1)

    def project(self, index):
        return self.norm(self.x[index], self.norm_weight[index]) @ self.projection[index].float().t()

    def tokens_of(self, index):
        return self.split(self.project(index))

    def error(self, index, outputs):
        return super().error(index, outputs) if self.append else self.compare(outputs[0], self.project(index))


class LinearInputs(Inputs):
    def __init__(self, bench, _):
        super().__init__(bench)
        shape = self.shape
        tokens, features = shape["tokens"], shape["out"]
        self.out_dtype = self.torch.float32 if shape["out_f32"] else self.dtype
        self.x = self.random(tokens, shape["in"])
        self.norm_weight = self.random(shape["in"]) if shape["norm"] else None
        self.projection = self.weight((2 if shape["gated"] else 1) * features, shape["in"])
        self.residual = self.random(tokens, features) if shape["residual"] else None
        self.out = self.output(tokens, features, dtype=self.out_dtype)

    def error(self, index, outputs):
        tokens = self.torch.tensor(self.picked(self.shape["tokens"], 8), device=self.place)
        x = self.x[index][tokens].float()
        if self.norm_weight is not None:
            x = self.norm(x, self.norm_weight[index])
        expected = x @ self.projection[index].float().t()
        if self.shape["gated"]:
            gate, up = expected.chunk(2, -1)
            expected = self.torch.nn.functional.silu(gate) * up
        if self.residual is not None:
            expected = expected + self.residual[index][tokens].float()
        return self.compare(outputs[0][tokens], expected, STEPS if self.shape["gated"] else 1)


class RmsNormInputs(Inputs):
    def __init__(self, bench, _):
        super().__init__(bench)
        tokens, hidden = self.shape["tokens"], self.shape["hidden"]
        self.x, self.norm_weight = self.random(tokens, hidden), self.random(hidden)
        self.add = self.random(tokens, hidden) if self.shape["add"] else None
        self.out = self.output(tokens, hidden)
        self.residual = self.output(tokens, hidden) if self.shape["add"] else None

    def error(self, index, outputs):
        """outputs: the normalised rows, and with "add" the sum that was normalised."""
        x = self.x[index]
        worst = 0.0
        if self.add is not None:
            x = (x.float() + self.add[index].float()).to(self.dtype)
            worst = self.same(outputs[1], x)
        return max(worst, self.compare(outputs[0], self.norm(x, self.norm_weight[index])))

    def in_place_error(self, index, outputs):
        outputs = [output.clone() for output in outputs]
        self.restore()
        return self.error(index, outputs)


class GatedSiluInputs(Inputs):
    def __init__(self, bench, _):
        super().__init__(bench)
        tokens, features = self.shape["tokens"], self.shape["intermediate"]
        self.gate_up = self.random(tokens, 2 * features, spread=2 * SPREAD)
        self.out = self.output(tokens, features)

    def error(self, index, outputs):
        gate, up = self.gate_up[index].float().chunk(2, -1)
        return self.compare(outputs[0], self.torch.nn.functional.silu(gate) * up)


class EmbeddingInputs(Inputs):
    def __init__(self, bench, _):
        super().__init__(bench)
        vocab, tokens = self.shape["vocab"], self.shape["tokens"]
        self.embeddings = self.random(vocab, self.shape["hidden"])
        self.ids = self.table(shapes.distinct_ids(tokens, vocab))
        self.out = self.output(tokens, self.shape["hidden"])

    def error(self, index, outputs):
        return self.same(outputs[0], self.embeddings[index][self.ids.long()])


class SamplingInputs(Inputs):
    def __init__(self, bench, _):
        super().__init__(bench)
        self.logits = self.random(self.shape["rows"], self.shape["vocab"], dtype=self.torch.float32, spread=16.0)
        self.tokens = self.output(self.shape["rows"], dtype=self.torch.int32)

    def error(self, index, outputs):
        """Any token that the rule may draw is right."""
        torch, shape, logits = self.torch, self.shape, self.logits[index]
        tokens = outputs[0].long().view(-1, 1)
        if not bool(((tokens >= 0) & (tokens < shape["vocab"])).all()):
            return WRONG
        chosen = logits.gather(1, tokens)
        if shape["temperature"] == 0:
            return 0.0 if torch.equal(chosen, logits.max(-1, keepdim=True).values) else WRONG
        values = logits.topk(shape["top_k"] or shape["vocab"], -1).values
        chances = (values / shape["temperature"]).softmax(-1)
        reached = chances.cumsum(-1) - chances < shape["top_p"] + 1e-4  # rounding at the edge
        least = values.masked_fill(~reached, float("inf")).min(-1, keepdim=True).values
        return 0.0 if bool((chosen >= least).all()) else WRONG


INPUTS = {"chunk_decode": AttentionInputs, "paged_prefill": AttentionInputs, "paged_gather": GatherInputs,
          "kv_append": lambda bench, layout: AppendInputs(bench, layout).make_tokens(), "rmsnorm_qkv": QkvInputs,
          "linear": LinearInputs, "norm": RmsNormInputs, "activation": GatedSiluInputs,
          "embedding": EmbeddingInputs, "sampling": SamplingInputs}
