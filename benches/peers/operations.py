"""What each library runs for each kernel of the suite. A new peer needs a function that returns an Operation, and a
line in PEERS. Importing this needs no PyTorch."""
import dataclasses
from typing import Callable, NamedTuple

from peers.inputs import INPUTS, NORM_EPS
from peers.measure import require_cold

WORKSPACE_BYTES = 256 << 20  # of FlashInfer, which recommends at least half of that
SEMAPHORE_BYTES = 4 << 20
BOTH = ("plain", "dependent")  # programmatic dependent launch can be chosen
PLAIN = ("plain",)
DEPENDENT = ("dependent",)  # it cannot be switched off


class Operation:
    """A subject of measure.py: launches of one library over Inputs, with tables of its own."""
    def __init__(self, inputs, launch, error=None, in_place=False, workspace_bytes=0, tables=()):
        self.sets, self.in_place = inputs.sets, in_place
        table_bytes = sum(table.numel() * table.element_size() for table in tables)
        self.memory_bytes = inputs.memory_bytes + workspace_bytes + table_bytes
        self.launch, self.refill, self.error = launch, inputs.refill, error or inputs.error


class Bench:
    """One row of the suite on the device: makes inputs, which the attempts of one layout share, and workspaces."""
    place = "cuda"

    def __init__(self, torch, libraries, row, l2_bytes, workspaces):
        self.torch, self.libraries, self.row = torch, libraries, row
        self.shape, self.sets = row["shape"], row["buffer_sets"]
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[row["dtype"]]
        self._l2_bytes, self._workspaces = l2_bytes, workspaces
        self._layout = self._inputs = None

    def inputs(self, layout):
        if self._layout != layout:
            self._layout = self._inputs = None  # frees the other layout's first
            self.torch.cuda.empty_cache()
            if self.row["cache"] == "cold":
                cost = self.row["cost"]
                require_cold(self.sets, cost["read_bytes"] + cost["write_bytes"], self._l2_bytes)
            self._inputs = INPUTS[self.row["kernel"]](self, layout)
            self._layout = layout
        return self._inputs

    def table(self, values, dtype=None):
        return self.torch.tensor(values, dtype=dtype or self.torch.int32, device=self.place)

    def library(self, name):
        return self.libraries[name]

    def flashinfer(self, module):
        return self.libraries["flashinfer"].module(module)

    def workspace(self, name="float", size=WORKSPACE_BYTES):
        """Bytes that are zero when first asked for, and then shared by all operations."""
        if name not in self._workspaces:
            self._workspaces[name] = self.torch.zeros(size, dtype=self.torch.uint8, device=self.place)
        return self._workspaces[name]


class Attempt(NamedTuple):
    """What one row is made from."""
    peer: str
    implementation: str
    chain: str
    layout: str
    make: Callable  # (bench, inputs, chain) -> Operation
    reason: str  # why it cannot be done, or ""


@dataclasses.dataclass
class Peer:
    peer: str  # the library
    implementation: str
    chains: tuple
    layout: str
    make: Callable
    unless: Callable = lambda shape: ""  # why a shape cannot be run, or ""
    fits: Callable = lambda shape: True  # whether the operation is meant for such shapes at all


def attempts(row, wanted):
    """The attempts at a row of the suite; those of one layout are next to each other."""
    found = []
    for peer in PEERS.get(row["kernel"], []):
        if peer.peer in wanted and peer.fits(row["shape"]):
            reason = peer.unless(row["shape"])
            found += [Attempt(peer.peer, peer.implementation, chain, peer.layout, peer.make, reason)
                      for chain in (PLAIN if reason else peer.chains)]
    order = {layout: at for at, layout in enumerate(dict.fromkeys(attempt.layout for attempt in found))}
    return sorted(found, key=lambda attempt: order[attempt.layout])


# --- attention


def _of_wrapper(wrapper, inputs, chain):
    def launch(index):
        out = inputs.out[index]
        wrapper.run(inputs.q[index], inputs.kv[index], out=out, enable_pdl=chain == "dependent")
        return (out,)
    return Operation(inputs, launch, workspace_bytes=WORKSPACE_BYTES)


def _flashinfer_decode(tensor_cores, backend):
    def make(bench, inputs, chain):
        decode = bench.flashinfer("decode")
        choice = {"backend": backend} if backend else {}
        wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(bench.workspace(), "HND", use_tensor_cores=tensor_cores,
                                                            **choice)
        wrapper.plan(inputs.kv_indptr, inputs.kv_indices, inputs.last_page, inputs.hq, inputs.hk, inputs.head_dim,
                     inputs.batch.page_size, q_data_type=bench.dtype, kv_data_type=bench.dtype)
        return _of_wrapper(wrapper, inputs, chain)
    return make


def _flashinfer_xqa(bench, inputs, chain):
    xqa, torch = bench.flashinfer("xqa").xqa, bench.torch
    batch, page_size = len(inputs.batch.lengths), inputs.batch.page_size
    semaphores = bench.workspace("semaphores", SEMAPHORE_BYTES).view(torch.uint32)
    lengths = inputs.lengths.view(batch, 1).view(torch.uint32)

    def launch(index):
        out, cache = inputs.out[index], inputs.kv[index]
        four = (batch, 1, inputs.hq, inputs.head_dim)
        xqa(inputs.q[index].view(four), cache[:, 0], cache[:, 1], inputs.page_table, lengths, out.view(four),
            bench.workspace(), semaphores, inputs.hk, page_size, q_scale=1.0, kv_layout="HND",
            enable_pdl=chain == "dependent")
        return (out,)
    return Operation(inputs, launch, workspace_bytes=WORKSPACE_BYTES + SEMAPHORE_BYTES)


def _flashinfer_cascade(bench, inputs, _chain):
    batch, count = inputs.batch, len(inputs.batch.lengths)
    wrapper = bench.flashinfer("cascade").MultiLevelCascadeAttentionWrapper(2, bench.workspace(), "HND")
    unique = batch.lengths[0] - batch.shared
    own = [page for pages in batch.own_pages for page in pages]
    table, pages_each = bench.table, len(batch.own_pages[0])
    q_indptr = [table([0, count]), table(list(range(count + 1)))]
    kv_indptr = [table([0, len(batch.shared_pages)]), table([i * pages_each for i in range(count + 1)])]
    kv_indices = [table(batch.shared_pages), table(own)]
    last_page = [table([batch.last_page_length(batch.shared)]), table([batch.last_page_length(unique)] * count)]
    wrapper.plan(q_indptr, kv_indptr, kv_indices, last_page, inputs.hq, inputs.hk, inputs.head_dim,
                 batch.page_size, q_data_type=bench.dtype, kv_data_type=bench.dtype)
    return Operation(inputs, lambda index: (wrapper.run(inputs.q[index], inputs.kv[index]),),
                     workspace_bytes=WORKSPACE_BYTES, tables=q_indptr + kv_indptr + kv_indices + last_page)


def _flashinfer_prefill(backend):
    def make(bench, inputs, chain):
        prefill = bench.flashinfer("prefill")
        wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper(bench.workspace(), "HND", backend=backend)
        wrapper.plan(inputs.q_indptr, inputs.kv_indptr, inputs.kv_indices, inputs.last_page, inputs.hq, inputs.hk,
                     inputs.head_dim, inputs.batch.page_size, causal=True, q_data_type=bench.dtype,
                     kv_data_type=bench.dtype)
        return _of_wrapper(wrapper, inputs, chain)
    return make


def _fa3(planned):
    """If `planned`, the schedule is made once and not timed, like FlashInfer's plan."""
    def make(bench, inputs, _chain):
        library, batch = bench.library("fa3"), inputs.batch
        longest_q, longest = max(batch.q_lengths), max(batch.lengths)
        schedule = None
        if planned:
            schedule = library.plan(len(batch.lengths), longest_q, longest, inputs.hq, inputs.hk, inputs.head_dim,
                                    bench.dtype, inputs.lengths, batch.page_size)

        def launch(index):
            out, (keys, values) = inputs.out[index], inputs.kv[index]
            library.forward(inputs.q[index], keys, values, out, inputs.q_indptr, inputs.lengths, longest_q, longest,
                            inputs.page_table, schedule)
            return (out,)
        return Operation(inputs, launch)
    return make


def _sdpa(backend_name):
    def make(bench, inputs, _chain):
        torch = bench.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right
        backend = getattr(SDPBackend, backend_name)
        q_length, length = inputs.batch.uniform
        square = q_length == length
        mask = None if square or q_length == 1 else causal_lower_right(q_length, length)
        batched = (len(inputs.batch.lengths), q_length, inputs.hq, inputs.head_dim)

        def launch(index):
            q, (k, v) = inputs.q[index].view(batched), inputs.kv[index]
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask,
                    is_causal=square and q_length > 1, enable_gqa=inputs.hq != inputs.hk)
            return (out.transpose(1, 2),)
        return Operation(inputs, launch)
    return make


def _contiguous_only(kernel, lower_right):
    """A function that says why contiguous attention cannot do a shape, or ""."""
    def unless(shape):
        if "shared" in shape:
            return "keys and values are contiguous: sequences cannot share them"
        if any(key in shape for key in ("lens", "kv_lens", "q_lens")):
            return "keys and values are contiguous: all sequences of a batch must have one length"
        if kernel == "paged_prefill" and shape["q_len"] != shape["kv_len"] and not lower_right:
            return "its causal mask begins at the first key: new tokens behind a past cannot be masked"
        return ""
    return unless


def xqa_unless(shape):
    sizes = (16, 32, 64, 128)
    return "" if shape["page_size"] in sizes else f"page_size is {shape['page_size']}; it takes 16, 32, 64 and 128"


# --- cache


def _flashinfer_append(bench, inputs, _chain):
    append, batch = bench.flashinfer("page").append_paged_kv_cache, inputs.batch
    tokens, one = len(batch.pages), batch.sequences == 1
    sequence_of = bench.table([0] * tokens if one else list(range(tokens)))
    # In the pages that a sequence lists, which are all of the one, and the last of each of the others.
    positions = bench.table(batch.positions if one else batch.rows)
    if one:
        pages, indptr = list(dict.fromkeys(batch.pages)), [0, batch.num_pages]
        last_page = [batch.rows[-1] + 1]
    else:
        pages, indptr = batch.pages, list(range(tokens + 1))
        last_page = [row + 1 for row in batch.rows]
    pages, indptr, last_page = bench.table(pages), bench.table(indptr), bench.table(last_page)

    def launch(index):
        pool = inputs.pool[index]
        append(inputs.k[index], inputs.v[index], sequence_of, positions, pool, pages, indptr, last_page, "HND")
        return (pool,)
    return Operation(inputs, launch, tables=(sequence_of, positions, pages, indptr, last_page))


def _store(inputs, pool, k, v):
    pool[inputs.pages, 0, :, inputs.rows] = k
    pool[inputs.pages, 1, :, inputs.rows] = v


def _rotate(torch, inputs, x, weight):
    x = torch.nn.functional.rms_norm(x, (inputs.head_dim,), weight, NORM_EPS)
    cos, sin = inputs.cos[inputs.positions][:, None], inputs.sin[inputs.positions][:, None]
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def _torch_append(bench, inputs, _chain):
    def launch(index):
        pool, k = inputs.pool[index], inputs.k[index]
        if not inputs.fused:
            _store(inputs, pool, k, inputs.v[index])
            return (pool,)
        q = _rotate(bench.torch, inputs, inputs.q[index], inputs.q_norm[index])
        _store(inputs, pool, _rotate(bench.torch, inputs, k, inputs.k_norm[index]), inputs.v[index])
        return (pool, q)
    return Operation(inputs, launch)


def _torch_gather_tokens(_bench, inputs, _chain):
    def launch(index):
        pool = inputs.kv[index]
        return tuple(pool[inputs.token_pages, part, :, inputs.token_rows] for part in (0, 1))
    return Operation(inputs, launch)


def _torch_gather_pages(bench, inputs, _chain):
    def launch(index):
        return (bench.torch.index_select(inputs.kv[index], 0, inputs.kv_indices),)
    return Operation(inputs, launch, error=inputs.pages_error)


def _whole_pages_only(shape):
    lengths = shape["lens"] if "lens" in shape else [shape["len"]]
    ragged = any(length % shape["page_size"] for length in lengths)
    return "gathers whole pages only, and here sequences end within one" if ragged else ""


# --- projections, norms and the rest


def _torch_qkv(bench, inputs, _chain):
    torch = bench.torch

    def launch(index):
        weight, qkv = inputs.norm_weight[index], inputs.qkv[index]
        rows = torch.nn.functional.rms_norm(inputs.x[index], (inputs.shape["hidden"],), weight, NORM_EPS)
        torch.mm(rows, inputs.projection[index].t(), out=qkv)
        if not inputs.append:
            return (qkv,)
        q, k, v = inputs.split(qkv)
        q = _rotate(torch, inputs, q, inputs.q_norm[index])
        _store(inputs, inputs.pool[index], _rotate(torch, inputs, k, inputs.k_norm[index]), v)
        return (inputs.pool[index], q)
    return Operation(inputs, launch)


def _flashinfer_qkv(bench, inputs, chain):
    rmsnorm, torch = bench.flashinfer("norm").rmsnorm, bench.torch
    rows = torch.empty_like(inputs.x[0])

    def launch(index):
        qkv = inputs.qkv[index]
        rmsnorm(inputs.x[index], inputs.norm_weight[index], NORM_EPS, out=rows, enable_pdl=chain == "dependent")
        torch.mm(rows, inputs.projection[index].t(), out=qkv)
        return (qkv,)
    return Operation(inputs, launch, workspace_bytes=rows.numel() * rows.element_size())


def _torch_linear(bench, inputs, _chain):
    torch, shape = bench.torch, bench.shape

    def launch(index):
        x, weight, out = inputs.x[index], inputs.projection[index].t(), inputs.out[index]
        if shape["norm"]:
            x = torch.nn.functional.rms_norm(x, (shape["in"],), inputs.norm_weight[index], NORM_EPS)
        if shape["gated"]:
            gate, up = torch.mm(x, weight).chunk(2, -1)
            torch.mul(torch.nn.functional.silu(gate), up, out=out)
        elif shape["residual"]:
            torch.addmm(inputs.residual[index], x, weight, out=out)
        elif shape["out_f32"]:
            return (torch.mm(x, weight, out_dtype=torch.float32),)
        else:
            torch.mm(x, weight, out=out)
        return (out,)
    return Operation(inputs, launch)


def _of_kind(kind):
    return lambda shape: shape["kind"] == kind


def _torch_rmsnorm(bench, inputs, _chain):
    torch = bench.torch

    def launch(index):
        x = inputs.x[index]
        written = ()
        if inputs.add is not None:
            x = torch.add(x, inputs.add[index], out=inputs.residual[index])
            written = (x,)
        weight = inputs.norm_weight[index]
        return (torch.nn.functional.rms_norm(x, (inputs.shape["hidden"],), weight, NORM_EPS), *written)
    return Operation(inputs, launch)


def _flashinfer_rmsnorm(bench, inputs, chain):
    norm, dependent = bench.flashinfer("norm"), chain == "dependent"

    def alone(index):
        out = inputs.out[index]
        norm.rmsnorm(inputs.x[index], inputs.norm_weight[index], NORM_EPS, out=out, enable_pdl=dependent)
        return (out,)

    def added(index):
        x, residual = inputs.x[index], inputs.add[index]
        norm.fused_add_rmsnorm(x, residual, inputs.norm_weight[index], NORM_EPS, enable_pdl=dependent)
        return (x, residual)
    if inputs.add is None:
        return Operation(inputs, alone)
    return Operation(inputs, added, error=inputs.in_place_error, in_place=True)


def _torch_gated_silu(bench, inputs, _chain):
    torch = bench.torch

    def launch(index):
        gate, up = inputs.gate_up[index].chunk(2, -1)
        return (torch.mul(torch.nn.functional.silu(gate), up, out=inputs.out[index]),)
    return Operation(inputs, launch)


def _flashinfer_gated_silu(bench, inputs, chain):
    silu_and_mul = bench.flashinfer("activation").silu_and_mul

    def launch(index):
        out = inputs.out[index]
        silu_and_mul(inputs.gate_up[index], out=out, enable_pdl=chain == "dependent")
        return (out,)
    return Operation(inputs, launch)


def _torch_embedding(bench, inputs, _chain):
    def launch(index):
        return (bench.torch.index_select(inputs.embeddings[index], 0, inputs.ids, out=inputs.out[index]),)
    return Operation(inputs, launch)


def _torch_sampling(bench, inputs, _chain):
    torch, shape = bench.torch, bench.shape

    def greedy(index):
        return (inputs.logits[index].argmax(-1),)

    def drawn(index):
        values, ids = inputs.logits[index].topk(shape["top_k"] or shape["vocab"], -1)
        chances = (values / shape["temperature"]).softmax(-1)
        chances = chances.masked_fill(chances.cumsum(-1) - chances >= shape["top_p"], 0)
        at = (chances / torch.empty_like(chances).exponential_()).argmax(-1, keepdim=True)
        return (ids.gather(1, at).view(-1),)
    return Operation(inputs, greedy if shape["temperature"] == 0 else drawn)


def _flashinfer_sampling(bench, inputs, _chain):
    sampling, torch, shape = bench.flashinfer("sampling"), bench.torch, bench.shape
    seed, offset = (bench.table([value], torch.int64) for value in (5, 0))

    def launch(index):
        chances = sampling.softmax(inputs.logits[index], shape["temperature"], enable_pdl=False)
        return (sampling.top_k_top_p_sampling_from_probs(chances, shape["top_k"], shape["top_p"], seed=seed,
                                                         offset=offset),)
    return Operation(inputs, launch)


PEERS = {
    "chunk_decode": [
        Peer("flashinfer", "flashinfer-cascade", DEPENDENT, "hnd", _flashinfer_cascade,
             fits=lambda shape: "shared" in shape),
        Peer("flashinfer", "flashinfer-tc", BOTH, "hnd", _flashinfer_decode(True, "fa2")),
        Peer("flashinfer", "flashinfer-cuda", BOTH, "hnd", _flashinfer_decode(False, "")),
        Peer("flashinfer", "flashinfer-fa3", PLAIN, "hnd", _flashinfer_decode(True, "fa3")),
        Peer("flashinfer", "flashinfer-xqa", BOTH, "hnd", _flashinfer_xqa, unless=xqa_unless),
        Peer("fa3", "fa3-planned", PLAIN, "nhd", _fa3(True)),
        Peer("fa3", "fa3", PLAIN, "nhd", _fa3(False)),
        Peer("cudnn", "cudnn-contiguous", PLAIN, "contiguous", _sdpa("CUDNN_ATTENTION"),
             unless=_contiguous_only("chunk_decode", True)),
        Peer("torch", "torch-contiguous", PLAIN, "contiguous", _sdpa("FLASH_ATTENTION"),
             unless=_contiguous_only("chunk_decode", True)),
    ],
    "paged_prefill": [
        Peer("flashinfer", "flashinfer-fa3", PLAIN, "hnd", _flashinfer_prefill("fa3")),
        Peer("flashinfer", "flashinfer-fa2", PLAIN, "hnd", _flashinfer_prefill("fa2")),
        Peer("fa3", "fa3", PLAIN, "nhd", _fa3(False)),
        Peer("cudnn", "cudnn-contiguous", PLAIN, "contiguous", _sdpa("CUDNN_ATTENTION"),
             unless=_contiguous_only("paged_prefill", False)),
        Peer("torch", "torch-contiguous", PLAIN, "contiguous", _sdpa("FLASH_ATTENTION"),
             unless=_contiguous_only("paged_prefill", True)),
    ],
    "kv_append": [
        Peer("flashinfer", "flashinfer", PLAIN, "hnd", _flashinfer_append,
             unless=lambda shape: "no one operation does QK-norm, RoPE and append" if shape["qk_norm_rope"] else ""),
        Peer("torch", "torch-index_put", PLAIN, "hnd", _torch_append),
    ],
    "paged_gather": [
        Peer("torch", "torch-index", PLAIN, "hnd", _torch_gather_tokens),
        Peer("torch", "torch-index_select-pages", PLAIN, "hnd", _torch_gather_pages, unless=_whole_pages_only),
    ],
    "rmsnorm_qkv": [
        Peer("torch", "torch-eager", PLAIN, "", _torch_qkv),
        Peer("flashinfer", "flashinfer-norm+cublas", PLAIN, "", _flashinfer_qkv,
             unless=lambda shape: "no one operation does QK-norm, RoPE and append" if shape["append"] else ""),
    ],
    "linear": [Peer("torch", "torch-eager", PLAIN, "", _torch_linear)],
    "norm": [
        Peer("torch", "torch-eager", PLAIN, "", _torch_rmsnorm, fits=_of_kind("rmsnorm")),
        Peer("flashinfer", "flashinfer", BOTH, "", _flashinfer_rmsnorm, fits=_of_kind("rmsnorm")),
    ],
    "activation": [
        Peer("torch", "torch-eager", PLAIN, "", _torch_gated_silu, fits=_of_kind("gated_silu")),
        Peer("flashinfer", "flashinfer", BOTH, "", _flashinfer_gated_silu, fits=_of_kind("gated_silu")),
    ],
    "embedding": [
        Peer("torch", "torch-index_select", PLAIN, "", _torch_embedding,
             unless=lambda shape: "no one operation adds the positions' rows" if shape.get("positions") else ""),
    ],
    "sampling": [
        Peer("torch", "torch-eager", PLAIN, "", _torch_sampling),
        Peer("flashinfer", "flashinfer", PLAIN, "", _flashinfer_sampling,
             unless=lambda shape: "has no greedy sampling" if shape["temperature"] == 0 else ""),
    ],
}
