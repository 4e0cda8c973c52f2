"""The op `fourier`: kernels and products against float64, its form in graphs, and what fuses with it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.build.builder import build  # noqa: E402
from tilewright.build.tuning import Tuning  # noqa: E402
from tilewright.dtypes import DType, float32, float64  # noqa: E402
from tilewright.errors import ShapeError, UnsupportedOperationError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.graph.build import GraphBuilder  # noqa: E402
from tilewright.graph.core import Value  # noqa: E402
from tilewright.graph.fourier import half, prime_factors, roots_of_unity  # noqa: E402
from tilewright.graph.passes.fourier import transforms_as_products  # noqa: E402
from tilewright.graph.passes.fuse import fuse  # noqa: E402
from tilewright.graph.pipeline import optimize  # noqa: E402
from tilewright.importers import import_model  # noqa: E402
from tilewright.library.fourier.cpu import radices  # noqa: E402
from tilewright.symbolic import Size, lift  # noqa: E402


def transform(b: GraphBuilder, rows: Size, length: int, form: str, parts: int, dtype: DType, inverse: bool) -> Value:
    columns = half(length) if form == "real" else length
    given = [b.input(f"x_{len(b.graph.inputs)}", dtype, (rows, columns)) for _ in range(parts)]
    inputs = [given[0], b.constant(roots_of_unity(length, dtype)), *given[1:]]
    return b.op("fourier", inputs, form=form, inverse=inverse)


CASES = [  # lengths of both kinds, all forms, few and many rows, both types
    (16 * 15, "half", 1, float32, False),
    (39, "real", 2, float32, False),
    (32, "whole", 2, float64, True),
]


@pytest.mark.parametrize("way", ["kernel", "product"])
def test_transforms(way: str, rng: np.random.Generator) -> None:
    """One engine of all cases, for any number of rows; the products are those of targets without a kernel."""
    b = GraphBuilder("transforms")
    rows = b.symbol("rows", 1, 100)
    for number, case in enumerate(CASES):
        b.output(transform(b, rows, *case), f"y_{number}")
    signal = b.input("signal", float32, (3, lift(rows) + 30))
    pieces = b.op("frames", [signal], axis=1, count=lift(rows) // 5 + 1, length=30, step=5)
    b.output(b.op("fourier", [pieces, b.constant(roots_of_unity(30, float32))], form="half"), "pieces")
    graph = b.finish()
    chosen = graph if way == "kernel" else transforms_as_products(graph)
    assert ("fourier" in {node.op for node in optimize(chosen).nodes}) == (way == "kernel")
    engine = build(chosen, "cpu", tuning=Tuning(effort=0)) if way == "kernel" else None
    for count in (1, 21):
        inputs = {x.name: rng.standard_normal((count, x.shape[1])).astype(x.dtype.numpy) for x in graph.inputs[:-1]}
        inputs["signal"] = rng.standard_normal((3, count + 30)).astype(np.float32)
        wanted = reference.run(graph, inputs)
        found = engine.run(inputs) if engine is not None else reference.run(chosen, inputs)
        for output, got, want in zip(graph.outputs, found.values(), wanted.values(), strict=True):
            bound = 32 * float(np.finfo(output.dtype.numpy).eps) * np.abs(want).max()
            assert got.shape == want.shape and np.abs(got - want).max() <= bound


class Spectrogram(torch.nn.Module):
    """Whisper's: reflected ends, frames of 40 every 16, the last one dropped."""

    def forward(self, x: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 40, 16, window=torch.hann_window(40), return_complex=True)
        return bank @ (spectrum[..., :-1].abs() ** 2)


class LogPower(torch.nn.Module):
    """By pairs of parts, frames first."""

    def forward(self, x: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 40, 16, window=torch.hann_window(40), return_complex=True)
        return torch.log(torch.view_as_real(spectrum).square().sum(-1).transpose(1, 2) @ bank.T + 1e-3)


@pytest.mark.parametrize(("module", "dynamic"), [(Spectrogram(), True), (LogPower(), False)])
def test_windows_and_magnitudes_are_part_of_the_transform(module: torch.nn.Module, dynamic: bool) -> None:
    """Frames, windows and powers are neither computed twice nor stored; also for any batch."""
    example = (torch.randn(2, 480), torch.rand(6, 21))
    graph = import_model(module, example, {"x": {0: ("batch", 1, 8)}} if dynamic else None)
    groups = [group for group in fuse(optimize(graph)).groups if group.kind == "transform"]
    assert len(groups) == 1 and len(groups[0].outputs) == 1 and groups[0].outputs[0].shape[-1] == 21
    assert {"frames", "multiply", "fourier", "slice", "add"} <= {node.op for node in groups[0].nodes}
    for batch in (2, 3)[: 1 + dynamic]:
        inputs = (torch.randn(batch, 480), example[1])
        wanted = module(*inputs).numpy()
        (found,) = reference.run(graph, {v.name: x.numpy() for v, x in zip(graph.inputs, inputs, strict=True)}).values()
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    if dynamic:
        engine = build(graph, "cpu", tuning=Tuning(effort=0))
        (found,) = engine.run({v.name: x.numpy() for v, x in zip(graph.inputs, inputs, strict=True)}).values()
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_factors() -> None:
    assert prime_factors(1) == () and prime_factors(400) == (2, 2, 2, 2, 5, 5) and prime_factors(97) == (97,)
    for points in (1, 2, 8, 16, 32, 128, 200, 240, 1001, 1024):
        for registers in (16, 32):
            assert np.prod(radices(points, registers)) == points


def test_lengths_beyond_a_block_are_refused() -> None:
    """By the importer, which names the limit, not by the compiler of a kernel that nobody wrote."""
    with pytest.raises(UnsupportedOperationError, match="2097152 numbers(.|\n)*at most 1048576"):
        import_model(lambda x: torch.view_as_real(torch.fft.rfft(x)), (torch.zeros(1, 1 << 21),))


def test_refusals() -> None:
    b = GraphBuilder("refused")
    x, roots = b.input("x", float32, (4, 18)), b.constant(roots_of_unity(18, float32))
    for inputs, form in (([x, roots], "third"), ([x, roots], "real"), ([x, b.constant(np.ones((9, 2)))], "half")):
        with pytest.raises(ShapeError):
            b.op("fourier", inputs, form=form)
    with pytest.raises(ShapeError, match="pieces"):
        b.op("frames", [x], axis=1, count=4, length=9, step=4)
    long = GraphBuilder("long")
    long.output(transform(long, 1, 1 << 16, "half", 1, float32, False))
    with pytest.raises(UnsupportedOperationError, match="65536 numbers"):
        transforms_as_products(long.finish())
