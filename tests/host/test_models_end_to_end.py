"""Whole models as engines, from one dynamic engine each: as near to PyTorch's float64 as float32 allows.

What float32 allows follows from the model's graph and inputs (`tests/rounding.py`), not from how well another library
rounds on this machine.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.host.model_support import arrays, onnx_graph, specification, torch_graph  # noqa: E402
from tests.rounding import graph_bounds  # noqa: E402
from tilewright import Engine  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

LENGTHS = (1, 32, 48)
SIZES: dict[str, list[dict[str, int]]] = {
    "minilm": [{"batch": batch, "sequence": length} for batch, length in ((1, 7), (3, 32), (2, 128))],
    "resnet50": [{"batch": batch} for batch in (1, 3)],
    "prefill": [{"batch": batch, "sequence": length} for batch in (1, 3, 16) for length in LENGTHS],
    "decode": [{"batch": batch, "past": past} for batch in (1, 3, 16) for past in (0, 20, 47)],
}


@functools.cache
def engine(name: str, importer: str = "torch") -> Any:
    return build(torch_graph(name) if importer == "torch" else onnx_graph(name))


@functools.cache
def expected(name: str, sizes: tuple[tuple[str, int], ...], seed: int) -> tuple[list[np.ndarray], list[float]]:
    """PyTorch's results in float64, mutated inputs last, and how far float32 may be from each."""
    spec, graph = specification(name), torch_graph(name)
    inputs = spec.make_inputs(**dict(sizes), seed=seed)
    exact = [tensor.numpy() for tensor in spec.run(inputs, torch.float64)]
    names = [*graph.output_names, *spec.mutated]
    bounds = graph_bounds(graph, arrays(inputs), dict(zip(names, exact, strict=True)), runs=2)
    return exact, [bounds[item] for item in names]


def within(name: str, found: list[Any], sizes: dict[str, int], seed: int) -> bool:
    """Whether results are as near to float64 as float32 allows."""
    exact, bounds = expected(name, tuple(sizes.items()), seed)
    errors = [np.abs(np.asarray(a, np.float64) - b).max(initial=0.0) for a, b in zip(found, exact, strict=False)]
    print(name, sizes, "of the bound:", [f"{error / bound:.3f}" for error, bound in zip(errors, bounds, strict=False)])
    return all(error <= bound for error, bound in zip(errors, bounds, strict=False))


def check(name: str, model: Any, sizes: dict[str, int], mutated: tuple[str, ...], seed: int = 0) -> None:
    given = {key: tensor.clone() for key, tensor in specification(name).make_inputs(**sizes, seed=seed).items()}
    outputs = model.run(given)
    found = [outputs[output.name] for output in model.outputs] + [given[item] for item in mutated]
    assert all(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in found)
    assert within(name, found, sizes, seed)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param(name, sizes, marks=[pytest.mark.slow] if name == "resnet50" else [])
        for name, entries in SIZES.items()
        for sizes in entries
    ],
    ids=str,
)
def test_as_exact_as_float32_allows(name: str, sizes: dict[str, int]) -> None:
    check(name, engine(name), sizes, specification(name).mutated)


@pytest.mark.parametrize("sizes", SIZES["minilm"], ids=str)
def test_through_onnx(sizes: dict[str, int]) -> None:
    check("minilm", engine("minilm", "onnx"), sizes, ())


def test_through_the_checkpoint(tmp_path: Path) -> None:
    """The folder alone, saved and loaded."""
    from tests.models.bert import checkpoint_folder

    specification("minilm")  # skips without the trained checkpoint
    path = tmp_path / "minilm.engine"
    build(import_model(checkpoint_folder())).save(path)
    check("minilm", Engine.load(path), SIZES["minilm"][1], ())


@pytest.mark.parametrize("significant", [8, 11, 16], ids=["bfloat16", "tf32", "16 bits"])
@pytest.mark.parametrize("name", SIZES)
def test_less_precision_is_seen(name: str, significant: int) -> None:
    """The bounds do their work: products of operands with fewer significant bits are outside of them."""
    sizes = SIZES[name][1]
    shortened = _Shortened(significant)
    with shortened:
        found = specification(name).run(specification(name).make_inputs(**sizes, seed=0))
    assert shortened.products and not within(name, found, sizes, 0)


class _Shortened(torch.overrides.TorchFunctionMode):
    """Linear layers and convolutions whose weights have fewer bits: as multipliers of a lower precision see them."""

    def __init__(self, significant: int) -> None:
        super().__init__()
        self.significant, self.products = significant, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.nn.functional.linear, torch.conv2d, torch.nn.functional.conv2d):
            self.products += 1
            args = (args[0], self._shorten(args[1]), *args[2:])
        return function(*args, **(kwargs or {}))

    def _shorten(self, tensor: torch.Tensor) -> torch.Tensor:
        fraction, exponent = torch.frexp(tensor)
        return torch.ldexp(torch.round(fraction * 2**self.significant) / 2**self.significant, exponent)


def test_a_saved_model_in_several_threads(tmp_path: Path) -> None:
    engine("prefill").save(tmp_path / "prefill.engine")
    loaded = Engine.load(tmp_path / "prefill.engine")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for sizes in SIZES["prefill"]:
                check("prefill", loaded, sizes, ())
        except BaseException as error:  # noqa: B036 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert not failures


def test_decoding_step_by_step_is_prefilling_at_once() -> None:
    """Tokens decoded one after the other through the static cache give the logits of the whole prompt."""
    spec = specification("prefill")
    sizes = {"batch": 3, "sequence": 12}
    tokens = spec.make_inputs(**sizes, seed=0)["input_ids"]
    (wanted,), (bound,) = expected("prefill", tuple(sizes.items()), 0)
    inputs = specification("decode").make_inputs(batch=3, past=0, seed=0)
    for position in range(12):
        inputs |= {"input_ids": tokens[:, position : position + 1], "positions": torch.tensor([position])}
        (found,) = engine("decode").run(inputs).values()
        assert np.abs(found[:, 0].double().numpy() - wanted[:, position]).max() <= bound
