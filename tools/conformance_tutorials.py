"""Run one of the reference's tutorials, its text unmodified, through the shim on the CPU, and check its results.

python tools/conformance_tutorials.py CHECKOUT 05-layer-norm

What differs from ``python -m tilewright.shim TUTORIAL``:

- Benchmarks measure the few sizes of `TUTORIALS`, so that a tutorial takes minutes.
- Tensors asked for on "cuda" are made on the CPU, and say that they are on a GPU (07 asserts it).  Where a tutorial
  knows no other back ends, the device calls itself "cuda".
- PyTorch's half-precision layer norm is computed in float32: on the CPU its gradients are off by 0.06, more than
  05 tolerates of ours.
- After a tutorial has run, what it printed or left in its variables is checked; tests that it only defines are called.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import conformance_plugin

Names = dict[str, Any]
Check = Callable[[Names, str], None]


@dataclass(frozen=True)
class Tutorial:
    """How a tutorial is run; `rows` limits its benchmarks to that many sizes, or gives the sizes."""

    check: Check
    rows: int | tuple[int, ...] = 2
    as_cuda: bool = False


def _asserts_itself(names: Names, printed: str) -> None:
    """The tutorial has assertions of its own."""


def _vector_add(names: Names, printed: str) -> None:
    assert "difference between torch and triton is 0.0" in printed


def _matmul(names: Names, printed: str) -> None:
    assert "✅" in printed and "❌" not in printed


def _dropout(names: Names, printed: str) -> None:
    x, first, again, other = (names[name] for name in ("x", "output", "output2", "output3"))
    assert first.equal(again) and not first.equal(other)
    for output in (first, other):
        assert output[output != 0].equal(2 * x[output != 0])  # kept with probability 1/2, and scaled by 2


def _attention(names: Names, printed: str) -> None:
    for causal in (False, True):
        for head in (64, 128):
            for mode, provider in (("fwd", "triton-fp8"), ("bwd", "triton-fp16")):
                names["test_op"](1, 2, 128, head, causal, False, mode, provider)


def _arcsine(names: Names, printed: str) -> None:
    assert (names["output_torch"] - names["output_triton"]).abs().max() < 1e-6
    assert printed.count("maximum difference") == 2


def _block_scaled(names: Names, printed: str) -> None:
    for form in ("nvfp4", "mxfp4", "mxfp8", "mixed"):
        names["validate_block_scaled"](256, 512, 512, form)
    for width in (16, 32):
        names["validate_block_scaled_amd"](256, 256, 512, mfma_nonkdim=width)


def _dependent_launch(names: Names, printed: str) -> None:
    assert "verification naive vs: add: ✅" in printed


TUTORIALS: dict[str, Tutorial] = {
    "01-vector-add": Tutorial(_vector_add),
    "02-fused-softmax": Tutorial(_asserts_itself),
    "03-matrix-multiplication": Tutorial(_matmul),
    "04-low-memory-dropout": Tutorial(_dropout),
    "05-layer-norm": Tutorial(_asserts_itself, rows=1),
    "06-fused-attention": Tutorial(_attention, rows=(128,)),
    "07-extern-functions": Tutorial(_arcsine, as_cuda=True),
    "08-grouped-gemm": Tutorial(_asserts_itself, rows=1),
    "10-block-scaled-matmul": Tutorial(_block_scaled),
    "11-programmatic-dependent-launch": Tutorial(_dependent_launch, rows=(1 << 16,), as_cuda=True),
}


class _Printed(io.StringIO):
    """Keeps what is printed, and prints it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        return super().write(text)


@contextlib.contextmanager
def _smaller_benchmarks(rows: int | tuple[int, ...]) -> Iterator[None]:
    from tilewright import testing

    whole = testing.Benchmark

    class Benchmark(whole):  # type: ignore[misc,valid-type]
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            self.x_vals = list(self.x_vals)[:rows] if isinstance(rows, int) else list(rows)

    testing.Benchmark = Benchmark  # type: ignore[misc]
    try:
        yield
    finally:
        testing.Benchmark = whole  # type: ignore[misc]


def _exact_layer_norm() -> None:
    import torch

    layer_norm = torch.nn.functional.layer_norm

    def wide(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        parts = [None if part is None else part.float() for part in (weight, bias)]
        return layer_norm(x.float(), shape, *parts, eps).to(x.dtype)

    torch.nn.functional.layer_norm = wide


def _call_it_cuda() -> None:
    import torch

    from tilewright.launch import driver

    target = driver.GPUTarget("cuda", 90, 32)
    driver.Driver.get_current_target = lambda self: target  # type: ignore[method-assign]
    torch.cuda.get_device_capability = lambda device=None: (9, 0)


def run(checkout: Path, name: str) -> None:
    """Run a tutorial and check it; raises what it raises, or `AssertionError`."""
    tutorial = TUTORIALS[name]
    conformance_plugin.prepare_torch()
    _exact_layer_norm()
    if tutorial.as_cuda:
        _call_it_cuda()
    from tilewright import shim

    printed = _Printed()
    with _smaller_benchmarks(tutorial.rows), conformance_plugin.CPUForCUDA():
        with contextlib.redirect_stdout(printed):
            names = shim.main([str(checkout / "python" / "tutorials" / f"{name}.py")])
        tutorial.check(names, printed.getvalue())


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve(), sys.argv[2])
