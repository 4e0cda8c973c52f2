"""Random numbers by counter: what PyTorch and ONNX draw without a seed of their own follows from the input `seed`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.errors import EngineDamagedError, TilewrightError, UnsupportedOperationError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.graph.build import GraphBuilder  # noqa: E402
from tilewright.graph.random_bits import random_bits  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

MANY = 6_000
SEED = np.array(5)


def drawn(function: Callable[..., Any], *inputs: Any, seeds: int = 1) -> list[np.ndarray]:
    """What the reference gives for a function of PyTorch, with each seed."""
    graph = import_model(function, inputs)
    named = {value.name: tensor.numpy() for value, tensor in zip(graph.inputs, inputs, strict=False)}
    rows = [reference.run(graph, {**named, "seed": np.array(seed)}).values() for seed in range(seeds)]
    return [np.asarray(found) for row in rows for found in row]


def test_bits_are_those_of_philox() -> None:
    zero = np.zeros(1, np.int64)
    (found,) = random_bits([zero, zero], {"stream": 0})
    assert int(found) & (2**64 - 1) == 0xE169C58D_6627E8D5  # the known answer for counter and key 0
    ones = np.full(1, -1, np.int64)
    assert (
        len({int(random_bits([a, b], {"stream": s})[0]) for a in (zero, ones) for b in (zero, ones) for s in (0, 1)})
        == 8
    )


# What is drawn, its mean and its variance.
MOMENTS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "rand": (lambda x: torch.rand(MANY) + 0 * x, 1 / 2, 1 / 12),
    "rand of float64": (lambda x: torch.rand(MANY, dtype=torch.float64) + 0 * x, 1 / 2, 1 / 12),
    "randn": (lambda x: torch.randn_like(x), 0.0, 1.0),
    "randn of float64": (lambda x: torch.randn(MANY, dtype=torch.float64) + 0 * x, 0.0, 1.0),
    "randint": (lambda x: torch.randint(-3, 8, (MANY,)) + 0 * x, 2.0, 10.0),
    "randint of a tensor": (lambda x: torch.randint_like(x, 9), 4.0, 20 / 3),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-1, 3), 1.0, 16 / 12),
    "normal": (lambda x: torch.empty_like(x).normal_(2, 3), 2.0, 9.0),
    "normal of tensors": (lambda x: torch.normal(x + 2, x + 3), 2.0, 9.0),
    "normal of a number": (lambda x: torch.normal(2.0, x + 3), 2.0, 9.0),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2.0), 1 / 2, 1 / 4),
    "geometric": (lambda x: torch.empty_like(x).geometric_(0.25), 4.0, 12.0),
    "log normal": (lambda x: torch.empty_like(x).log_normal_(0.0, 0.5), 1.133148, 0.364696),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.3), 0.3, 0.21),
    "bernoulli of a number": (lambda x: torch.empty_like(x).bernoulli_(0.3), 0.3, 0.21),
    "random": (lambda x: torch.empty_like(x).random_(5), 2.0, 2.0),
    "choices": (lambda x: torch.multinomial(x[:2] + torch.tensor([1.0, 3.0]), MANY, replacement=True), 3 / 4, 3 / 16),
}  # fmt: skip


def test_distributions() -> None:
    """All in one graph, in which each draw has numbers of its own."""
    rows = drawn(lambda x: [draw(x).reshape(-1) for draw, _, _ in MOMENTS.values()], torch.zeros(MANY))
    for (name, (_, mean, variance)), row in zip(MOMENTS.items(), rows, strict=True):
        found = row.astype(np.float64)
        assert found.shape == (MANY,), name
        assert abs(found.mean() - mean) < 6 * (variance / MANY) ** 0.5, name
        assert abs(found.var() - variance) < 0.1 * variance, name
        assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 6 / MANY**0.5, name
    alike = np.corrcoef([row.astype(np.float64) for row in rows]) - np.eye(len(rows))
    assert np.abs(alike).max() < 6 / MANY**0.5


def test_numbers_below_one_have_the_bits_of_their_type() -> None:
    types = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
    rows = drawn(lambda x: [torch.rand(3000, dtype=dtype).float() + x for dtype in types], torch.zeros(3000))
    for row, digits in zip(rows, types.values(), strict=True):
        found = row * 2**digits
        assert (found == np.floor(found)).all() and found.max() < 2**digits
    (normal,) = drawn(lambda x: torch.randn_like(x), torch.zeros(MANY))
    shares = [(np.abs(normal) < limit).mean() for limit in (1.0, 2.0, 3.0)]
    np.testing.assert_allclose(shares, [0.6827, 0.9545, 0.9973], atol=0.015)


def test_choices_without_replacement() -> None:
    """Rows of weights: none twice, none without a weight, the first as often as its weight says."""
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0]).repeat(4000, 1)
    (found,) = drawn(lambda w: torch.multinomial(w, 3), weights)
    assert (np.sort(found, 1) == [1, 2, 4]).all()
    counted = np.bincount(found[:, 0], minlength=5) / 4000
    np.testing.assert_allclose(counted, [0, 1 / 8, 2 / 8, 0, 5 / 8], atol=0.05)
    orders = {tuple(row) for row in drawn(lambda x: torch.randperm(5) + 0 * x, torch.zeros(5), seeds=40)}
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders) and len(orders) > 20


class Noisy(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + torch.randn_like(x), torch.rand_like(x), torch.bernoulli(x.abs().clamp(max=1.0))


def test_engines_draw_what_the_reference_does(tmp_path: Path) -> None:
    x = torch.arange(10, dtype=torch.float32).reshape(2, 5) / 10
    axes = {"x": {0: ("n", 1, 4)}}
    graph = import_model(Noisy().eval(), (x,), dynamic_shapes=axes)
    engine = tilewright.compile(Noisy().eval(), (x,), dynamic_shapes=axes, target="cpu", effort=0)
    assert [spec.name for spec in engine.inputs] == ["x", "seed"] and engine.seed == "seed"
    wanted = list(reference.run(graph, {"x": x.numpy(), "seed": SEED}).values())
    engine.save(tmp_path / "noisy.engine")
    loaded = tilewright.load(tmp_path / "noisy.engine")
    for found in (engine(x, seed=torch.tensor(5)), engine(x, SEED), loaded(x, seed=SEED)):
        np.testing.assert_allclose(found[0].numpy(), wanted[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found[1].numpy(), wanted[1])
        np.testing.assert_array_equal(found[2].numpy(), wanted[2])
    without = [tuple(result.numpy().tobytes() for result in some(x)[:2]) for some in (engine, engine, loaded)]
    assert len({text for texts in without for text in texts}) == 6
    package = engine._package
    with pytest.raises(EngineDamagedError, match="seed"):
        tilewright.Engine(
            type(package)({**package.manifest, "seed": "x"}, package.weights, package.graph, package.objects)
        )


def test_graphs_know_their_seed() -> None:
    """A model's own input of that name is another, and passes keep the name."""
    builder = GraphBuilder("g")
    own = builder.input("seed", tilewright.dtypes.int64, ())
    assert builder.seed().name == "seed_1" and builder.seed() is builder.seed() is not own
    with pytest.raises(TilewrightError, match="stream"):
        builder.op("random_bits", [own, own], stream=-1)


def test_loops_that_only_the_run_decides_draw_nothing() -> None:
    def function(x: Any) -> Any:
        return torch.while_loop(lambda y: y.sum() < 9, lambda y: (y + torch.rand_like(y),), (x,))[0]

    with pytest.raises(UnsupportedOperationError, match="loop or branch"):
        import_model(function, (torch.zeros(3),))
