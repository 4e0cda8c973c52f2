"""What compiling costs, cold, on one core: softmax, a matrix product, attention; with a GPU, tuning a product, too.

    python benchmarks/compile_cuda.py [--out benchmarks/results/compile_cuda.json]

Every kernel is compiled with an empty cache, in this process, when the modules are loaded and LLVM has started.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from tilewright import ops
from tilewright.library.attention.hopper.config import ATTENTION_PARAMETERS, AttentionConfig
from tilewright.library.attention.hopper.kernel import attention
from tilewright.library.matmul.hopper.config import MATMUL_PARAMETERS, MatmulConfig
from tilewright.library.matmul.hopper.kernel import matmul
from tilewright.library.reduce.simt_arrays_kernel import reduce_rows
from tilewright.library.rows import simt_kernel as gpu_rows
from tilewright.settings import settings

ALLOWED = {"softmax": 0.4, "matmul": 1.0, "attention": 1.5, "tuning": 10.0}  # seconds


def compile_times() -> dict[str, float]:
    """Seconds from a kernel's function to machine code."""
    config, wide = MatmulConfig(), AttentionConfig(CAUSAL=True)
    sizes = dict.fromkeys(("rows", "columns", "x_stride", "out_stride"), "i32")
    rows = {"x": "*bf16", "out": "*bf16", **sizes}
    cases: list[tuple[str, Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        ("warm up", reduce_rows, {"x": "*bf16", "out": "*f32", "rows": "i32", "columns": "i32",
         "factor": "f32"}, {"KIND": "sum", "INITIAL": 0.0, "ROWS": 1, "BLOCK": 1024, "WHOLE": True, "MASK": False}, {}),
        ("softmax", gpu_rows.softmax, rows, {"LOG": False, "ROWS": 1, "BLOCK": 8192, "MASK": False}, {"num_warps": 8}),
        ("matmul", matmul, MATMUL_PARAMETERS.types(config), {"CONFIG": config}, {}),
        ("attention", attention, ATTENTION_PARAMETERS.types(wide), {"CONFIG": wide}, {}),
    ]  # fmt: skip
    result = {}
    for name, kernel, types, constants, options in cases:
        began = time.perf_counter()
        kernel.compile(types, constants, target="cuda:sm_90a", options=options)
        result[name] = time.perf_counter() - began
    del result["warm up"]
    return result


def tuning_time() -> dict[str, float]:
    """Seconds to choose the config of a 4096 x 4096 x 4096 product in bfloat16, nothing compiled before."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    a, b = (torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(2))
    torch.mm(a, b)
    plan = ops.plan_matmul(a, b.T, effort=1)
    print(plan.explain())
    return {"tuning": plan.alternatives.seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=common.RESULTS / "compile_cuda.json")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder, settings.scope(cache_directory=Path(folder)):
        seconds = {**compile_times(), **tuning_time()}
    for name, value in seconds.items():
        print(f"{name:10} {value:.2f} s, allowed {ALLOWED[name]} s")
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(
        json.dumps({**common.environment(1), "seconds": seconds, "allowed": ALLOWED}, indent=1) + "\n"
    )
    return 0 if all(value <= ALLOWED[name] for name, value in seconds.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
