"""Records of `tokline bench --workload` on the simulated machine of synthetic.py."""

import numpy as np

REQUESTS, PROMPT_TOKENS, NEW_TOKENS = 256, 142827, 133966
WEIGHTS, KV_CACHE = 1_200_000_000, 90_000_000_000


def workload_run(machine, us=50.0, repeats=3, **changes):
    """The records of one run whose output tokens take `us` each; `changes` are put into the row."""
    header = machine.header("tokline bench")
    samples = np.asarray(machine._samples(us * NEW_TOKENS / 1e6, repeats))
    machine.wait(seconds=30)
    each = 1e6 * samples / NEW_TOKENS
    median = float(np.median(each))
    row = {
        "schema": 2,
        "kind": "row",
        "run_id": header["run_id"],
        "kernel": "workload",
        "implementation": "cuda",
        "model": "qwen3-0.6b",
        "shape": {
            "name": "nano-vllm",
            "hash": "0123456789abcdef",
            "requests": REQUESTS,
            "prompt_tokens": PROMPT_TOKENS,
            "new_tokens": NEW_TOKENS,
            "max_batch": 256,
            "token_budget": 8192,
            "page_size": 256,
            "reuse": False,
            "kv_limit": None,
        },
        "dtype": "bf16",
        "device": header["fingerprint"]["gpu"]["name"],
        "status": "ok",
        "reason": None,
        "interrupted": False,
        "disturbed": None,
        "library": None,
        "verified": {"tokens": 256, "mean_regret": 0.0004},
        "memory": {
            "weights": WEIGHTS,
            "kv_cache": KV_CACHE,
            "activations": 200_000_000,
            "workspaces": 50_000_000,
            "tables": 10_000_000,
        },
        "memory_bytes": WEIGHTS + KV_CACHE + 260_000_000,
        "samples_s": samples.tolist(),
        "samples_new_tokens": [NEW_TOKENS] * repeats,
        "total_s": float(np.median(samples)),
        "output_tok_s": 1e6 / median,
        "total_tok_s": float(np.median((PROMPT_TOKENS + NEW_TOKENS) / samples)),
        "median_us": median,
        "mad_us": float(np.median(np.abs(each - median))),
        "ci95_us": [float(each.min()), float(each.max())],
        "warm_up_s": 2.5,
        "first_token_ms": {"count": REQUESTS, "median": 480.0, "p90": 900.0, "p99": 1100.0},
        "between_tokens_ms": {"count": NEW_TOKENS - REQUESTS, "median": 10.5, "p90": 14.0, "p99": 60.0},
        "end_to_end_ms": {"count": REQUESTS, "median": 6100.0, "p90": 9800.0, "p99": 11200.0},
        "host_share": 0.08,
        "step_host_us": 800.0,
        "steps": 1040,
        "graph_steps": 1000,
        "preemptions": 3,
        "recomputed_tokens": 2000,
        "reused_tokens": 0,
        "decode_read_bytes": 9_000_000,
        "decode_unshared_bytes": 9_000_000,
        "kv_pages": 3000,
        "mean_kv_pages": 700.5,
        "max_kv_pages": 1100,
        "memory_points": [],
    }
    row |= changes
    if "good_requests" in row:
        row["goodput_req_s"] = row["good_requests"] / row["total_s"]
    end = {
        "schema": 2, "kind": "end", "run_id": header["run_id"], "interrupted": False, "rows": 1,
        "refused": int(row["status"] != "ok"), "gpu_after": header["fingerprint"]["gpu"]["before"],}
    return [header, row, end]


def rate_sweep(machine, rates=(0.5, 1, 2, 4, "inf"), **changes):
    """The records of a workload at several rates: the faster requests come, the longer they wait."""
    lines = []
    for number, rate in enumerate(rates):
        shape = workload_run(machine)[1]["shape"] | {"rate": rate, "hash": f"{number:016x}"}
        waits = {"count": REQUESTS, "median": 40.0 * 3**number, "p90": 60.0 * 3**number, "p99": 90.0 * 3**number}
        lines += workload_run(machine, 400.0 / 2**number, shape=shape, first_token_ms=waits, **changes,
                              slo={"first_token_ms": 200.0, "mean_between_ms": 20.0},
                              good_requests=(256, 250, 200, 90, 12)[number])
    return lines
