"""Runs nano-vllm on the workload of its own benchmark and appends a row that stands beside the suite's."""
import importlib.util
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import time
import tomllib
import types

from peers import rows
from peers.measure import median, median_interval
from tokline import command, records, terminal
from tokline.schema import VERSION
from tokline.stop import Stop

NO_GPU_EXIT = 77
NEEDED = ("torch", "triton", "transformers", "xxhash", "tqdm")
TEMPERATURE = 0.6
MAX_MODEL_LEN = 4096  # as its benchmark has it
EPILOG = """\
The 256 requests are those of nano-vllm's bench.py: prompts and outputs of 100 to 1,024 tokens. FlashAttention-3 takes
the place of the package flash-attn. Nothing is encoded or decoded as text. One repeat, in which everything is
compiled, does not count. nano-vllm keeps K and V of earlier prompts; each repeat has ids of its own, so that it finds
none.

example:
  scripts/peers nano-vllm --checkout ~/nano-vllm --model build/models/qwen3-0.6b --python ~/nano/bin/python \\
    --beside results/h200/workloads.jsonl --record results/h200/workloads.jsonl

exit codes: 0 measured, 1 refused or a file cannot be used, 2 misuse or something that is missing, 77 no GPU, 130
interrupted.
"""


def parse(arguments):
    terminal.program = "scripts/peers nano-vllm"
    parser = command.parser(__doc__, EPILOG)
    parser.add_argument("--checkout", required=True, type=pathlib.Path, metavar="DIR", help="nano-vllm's repository")
    parser.add_argument("--model", required=True, type=pathlib.Path, metavar="DIR",
                        help="the checkpoint that the suite's row was measured with")
    parser.add_argument("--beside", required=True, nargs="+", metavar="RECORDS.jsonl",
                        help="records with the suite's row of the workload nano-vllm")
    parser.add_argument("--record", required=True, metavar="OUT.jsonl", help="the row is appended to this file")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="repeats that count (default: 3)")
    parser.add_argument("--fa3-version", metavar="TEXT",
                        help="version of FlashAttention-3, if the package that it came in is not installed")
    # The script that starts this takes it.
    parser.add_argument("--python", metavar="PATH",
                        help="an interpreter that has " + ", ".join(NEEDED) + " and FlashAttention-3; it is required")
    options = parser.parse_args(arguments)
    if not (options.checkout / "nanovllm" / "__init__.py").is_file():
        parser.error(f"--checkout {options.checkout} has no nanovllm/__init__.py; github.com/GeeeekExplorer/nano-vllm has")
    if not (options.model / "config.json").is_file():
        parser.error(f"--model {options.model} has no config.json")
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; it must be at least 1")
    return options


def suite_row(paths, model):
    """The newest row of the suite that served these requests with this model on a GPU, with all the memory it wants."""
    found = [row for run in sorted(records.read(paths, terminal.say), key=lambda run: run.time) if run.injected is None
             for row in run.rows
             if row["kernel"] == records.WORKLOAD and row["status"] == "ok" and row["library"] is None
             and row["device"] != "cpu" and row["shape"]["name"] == "nano-vllm" and row["shape"]["kv_limit"] is None]
    if not found:
        raise Stop("no row of --beside is the workload nano-vllm on a GPU; tokline bench --workload nano-vllm makes one",
                   command.MISUSE)
    row = found[-1]
    if row["model"] != model:
        raise Stop(f"--model is {model}, but the newest row of the workload nano-vllm is of {row['model']}", command.MISUSE)
    return row


def requests(repeat):
    """(prompts, numbers of new tokens) as bench.py draws them; the ids of a repeat are its own."""
    draw = random.Random(0)
    prompts = [[draw.randint(0, 10000) for _ in range(draw.randint(100, 1024))] for _ in range(256)]
    new_tokens = [draw.randint(100, 1024) for _ in range(256)]
    return [[(token + 997 * repeat) % 10001 for token in prompt] for prompt in prompts], new_tokens


def flash_attn(torch, attention):
    """A module that takes the place of flash_attn, with the two functions that nano-vllm calls."""
    indptrs = {}

    def run(q, k, v, scale, **keywords):
        if not math.isclose(scale, q.shape[-1] ** -0.5, rel_tol=1e-6):
            raise ValueError(f"softmax_scale is {scale}; it must be {q.shape[-1] ** -0.5}")
        return attention.forward(q, k, v, torch.empty_like(q), schedule=None, **keywords)

    def varlen(q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k, softmax_scale, causal, block_table=None):
        assert causal
        paged = block_table is not None
        return run(q, k, v, softmax_scale, q_indptr=cu_seqlens_q, longest_q=max_seqlen_q, longest_kv=max_seqlen_k,
                   kv_lengths=cu_seqlens_k.diff() if paged else None, kv_indptr=None if paged else cu_seqlens_k,
                   page_table=block_table)

    def with_kvcache(q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, causal):
        assert causal and q.shape[1] == 1
        batch = q.shape[0]
        if batch not in indptrs:  # the first call of a batch size comes before its capture
            indptrs[batch] = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
        out = run(q.squeeze(1), k_cache, v_cache, softmax_scale, q_indptr=indptrs[batch], longest_q=1,
                  longest_kv=block_table.shape[1] * k_cache.shape[1], kv_lengths=cache_seqlens, page_table=block_table)
        return out.unsqueeze(1)

    module = types.ModuleType("flash_attn")
    module.flash_attn_varlen_func, module.flash_attn_with_kvcache = varlen, with_kvcache
    return module


class NoTokenizer:
    """Takes the place of a tokenizer: requests are ids, and so are outputs."""
    eos_token_id = -1

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()

    def decode(self, _):
        return ""


def load(checkout, model, attention_module):
    """(its class of sampling parameters, its engine) of nano-vllm, set up as its benchmark does it."""
    sys.path.insert(0, str(checkout))
    sys.modules["flash_attn"] = attention_module
    nanovllm = importlib.import_module("nanovllm")
    importlib.import_module("nanovllm.engine.llm_engine").AutoTokenizer = NoTokenizer
    return nanovllm.SamplingParams, nanovllm.LLM(str(model), enforce_eager=False, max_model_len=MAX_MODEL_LEN)


def measure(sampling, engine, repeats, synchronize, say, clock=time.perf_counter):
    """(seconds, new tokens, whether every request got all of its tokens) of the repeats that count."""
    seconds, written, complete = [], [], True
    for repeat in range(repeats + 1):
        prompts, new_tokens = requests(repeat)
        rules = [sampling(temperature=TEMPERATURE, ignore_eos=True, max_tokens=count) for count in new_tokens]
        synchronize()
        begin = clock()
        outputs = engine.generate(prompts, rules, use_tqdm=False)
        synchronize()
        took = clock() - begin
        counts = [len(output["token_ids"]) for output in outputs]
        complete = complete and counts == new_tokens
        say(f"repeat {repeat}{'' if repeat else ', not counted'}: {took:.2f} s, {sum(counts) / took:,.0f} tok/s")
        if repeat:
            seconds.append(took)
            written.append(sum(counts))
    return seconds, written, complete


def peer_row(run_id, ours, library, device, config, seconds, written, complete, failure, disturbed):
    """The row of nano-vllm beside `ours`, whose requests it takes over."""
    how = {"max_batch": config.max_num_seqs, "token_budget": config.max_num_batched_tokens,
           "page_size": config.kvcache_block_size, "reuse": True} if config else {}
    reason = failure or ("" if complete else "a request has another number of new tokens than it asked for")
    row = {"schema": VERSION, "kind": "row", "run_id": run_id, "kernel": records.WORKLOAD, "implementation": "nano-vllm",
           "model": ours["model"], "shape": ours["shape"] | how, "dtype": ours["dtype"], "device": device,
           "status": "refused" if reason else "ok", "reason": reason or None, "interrupted": False,
           "disturbed": disturbed or None, "library": library, "memory_bytes": None,
           "verified": {"new_tokens": complete and not failure}}
    if reason:
        return row
    each = [1e6 * second / tokens for second, tokens in zip(seconds, written)]
    middle, prompt_tokens = median(each), ours["shape"]["prompt_tokens"]
    return row | {"samples_s": seconds, "samples_new_tokens": written, "total_s": median(seconds),
                  "output_tok_s": 1e6 / middle, "median_us": middle,
                  "total_tok_s": median([(prompt_tokens + tokens) / second for second, tokens in zip(seconds, written)]),
                  "mad_us": median([abs(us - middle) for us in each]), "ci95_us": list(median_interval(each))}


def version_of(checkout):
    """The commit of the checkout, or the version of its project where it is not a repository of its own."""
    done = subprocess.run(["git", "-C", checkout, "rev-parse", "--show-toplevel", "--short=12", "HEAD"],
                          capture_output=True, text=True)
    top, _, commit = done.stdout.strip().partition("\n")
    if done.returncode == 0 and pathlib.Path(top).resolve() == checkout.resolve():
        return commit
    try:
        return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return "unknown"


def error_text(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def main(arguments):
    options = parse(arguments)
    ours = suite_row(options.beside, options.model.resolve().name)
    prompts, new_tokens = requests(0)
    drawn = {"prompt_tokens": sum(map(len, prompts)), "new_tokens": sum(new_tokens)}
    if any(ours["shape"][name] != count for name, count in drawn.items()):
        raise Stop(f"the row of --beside has other requests: {json.dumps({name: ours['shape'][name] for name in drawn})} "
                   f"instead of {json.dumps(drawn)}", command.MISUSE)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Stop(f"{sys.executable} has no {', '.join(missing)}; nano-vllm needs {', '.join(NEEDED)}", command.MISUSE)
    import torch
    if not torch.cuda.is_available():
        raise Stop("no GPU that PyTorch can use: nano-vllm not run", NO_GPU_EXIT)

    from peers.gpu import CudaDevice
    from peers.libraries import FlashAttention3, Missing
    try:
        attention = FlashAttention3(torch, options.fa3_version)
    except Missing as error:
        raise Stop(f"FlashAttention-3 is missing: {error}", command.MISUSE) from None
    device = CudaDevice(torch)
    torch.cuda.set_stream(torch.cuda.default_stream())  # as nano-vllm runs by itself
    library = {"name": "nano-vllm", "version": version_of(options.checkout)}
    versions = {"nano-vllm": library["version"], "torch": torch.__version__, attention.name: attention.version}
    run_id, say = rows.new_run_id(), lambda words: print(words, file=sys.stderr, flush=True)
    try:
        record = rows.RecordFile(options.record)
        fingerprint = device.fingerprint(["scripts/peers", "nano-vllm", *arguments], versions)
        record.append(rows.header_line(run_id, fingerprint, None, None))
        row, interrupted = None, True
        try:
            failure, config, seconds, written, complete = "", None, [], [], False
            try:
                sampling, engine = load(options.checkout, options.model, flash_attn(torch, attention))
                config = engine.model_runner.config
                seconds, written, complete = measure(sampling, engine, options.repeats, torch.cuda.synchronize, say)
            except Exception as error:  # whatever nano-vllm throws refuses its row
                failure = error_text(error)
            row = peer_row(run_id, ours, library, device.name, config, seconds, written, complete, failure,
                           device.disturbance())
            record.append(row)
            interrupted = False
        finally:
            record.append(rows.end_line(run_id, [row] if row else [], interrupted, device.nvml.state()))
    except OSError as error:
        raise Stop(f"cannot write {options.record}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        raise Stop("interrupted; the run is recorded as such", command.INTERRUPTED) from None
    if row["status"] != "ok":
        raise Stop(f"refused: {row['reason']}")
    say(f"nano-vllm {row['output_tok_s']:,.0f} tok/s, Tokline {ours['output_tok_s']:,.0f} tok/s on {ours['device']}")
    return 0


if __name__ == "__main__":
    code = command.ended("scripts/peers nano-vllm", lambda: main(sys.argv[1:]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nano-vllm's handlers at exit wait for a group of processes that a failure leaves behind
