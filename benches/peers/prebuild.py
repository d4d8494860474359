"""Compiles the FlashInfer modules that peers run into FlashInfer's own folder of prebuilt modules, so that
nothing is compiled while rows are measured. Needs nvcc and no GPU.

usage: python -m peers.prebuild [FOLDER]      FOLDER: another copy of the package, for a machine without nvcc
"""
import json
import os
import pathlib
import shutil
import sys

from peers.operations import xqa_unless

HEAD_DIM = 128
DECODE_SHAPES = pathlib.Path(__file__).resolve().parents[1] / "shapes" / "chunk_decode.json"


def xqa_variants():
    """(page size, query heads per KV head) of the default shapes that XQA takes: each needs a module of its own."""
    shapes = [shape for group in json.loads(DECODE_SHAPES.read_text(encoding="utf-8")).values() for shape in group]
    return sorted({(page_size, shape["hq"] // shape["hk"]) for shape in shapes for page_size in shape["pages"]
                   if not xqa_unless({"page_size": page_size})})


def modules():
    """What operations.py runs on the default shapes: bf16, head_dim 128."""
    import torch
    from flashinfer import jit
    from flashinfer.jit.activation import gen_act_and_mul_module
    from flashinfer.jit.attention.modules import _gen_batch_prefill_primary_module
    from flashinfer.jit.cascade import gen_cascade_module
    from flashinfer.jit.norm import gen_norm_module
    from flashinfer.jit.page import gen_page_module
    from flashinfer.jit.sampling import gen_sampling_module
    from flashinfer.jit.topk import gen_topk_module
    from flashinfer.jit.xqa import gen_xqa_module
    bf16 = torch.bfloat16
    types, heads, plain = (bf16, bf16, bf16, torch.int32), (HEAD_DIM, HEAD_DIM), (0, False, False)
    yield gen_page_module()
    yield gen_act_and_mul_module("silu")
    yield gen_norm_module()
    yield gen_cascade_module()
    yield jit.gen_batch_decode_module(*types, *heads, *plain)
    for page_size, group in xqa_variants():
        yield gen_xqa_module(bf16, bf16, page_size, HEAD_DIM, group, False, bf16)
    yield gen_sampling_module()
    yield gen_topk_module()
    yield _gen_batch_prefill_primary_module("fa2", *types, *heads, *plain, False)
    yield jit.gen_batch_prefill_module("fa3", *types, *heads, *plain, False)


def main(arguments):
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0 if len(arguments) == 1 else 2
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    from flashinfer.jit import env
    package = pathlib.Path(arguments[0]) if arguments else env.FLASHINFER_AOT_DIR.parents[1]
    if not (package / "data").is_dir():
        print(f"peers.prebuild: {package} is no copy of flashinfer: it has no folder 'data'", file=sys.stderr)
        return 2
    failed = 0
    for module in modules():
        target = package / "data" / "aot" / module.name / f"{module.name}.so"
        if target.exists():
            continue
        print(f"peers.prebuild: {module.name}", flush=True)
        try:
            module.build(verbose=False)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module.jit_library_path, target)
        except Exception as error:  # the other modules are useful without this one
            failed += 1
            print(f"peers.prebuild: {module.name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
