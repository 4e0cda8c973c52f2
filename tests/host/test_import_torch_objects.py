"""Arguments and results that are objects: caches, dataclasses, dicts; exported, and run by name."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.engine.arguments import Arguments  # noqa: E402
from tilewright.errors import ImportModelError, InputError  # noqa: E402
from tilewright.importers import import_model  # noqa: E402


class Layer:
    def __init__(self) -> None:
        self.keys: Any = None
        self.limit = 3


class Cache:
    """Keys of each layer, which grow: as those that generate text."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def grown(self, keys: Any) -> Any:
        if not self.layers:
            self.layers.append(Layer())
        (layer,) = self.layers
        layer.keys = keys if layer.keys is None else torch.cat([layer.keys, keys], 1)
        return layer.keys


class Decoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> dict[str, Any]:
        cache = Cache() if cache is None else cache
        return {"total": cache.grown(self.project(x)).sum(1), "cache": cache}


def test_objects_that_hold_tensors() -> None:
    module, x = Decoder().eval().requires_grad_(False), torch.randn(2, 3, 4)
    graph = import_model(module, (x,), {"x": {0: ("batch", 1, 8)}})
    assert graph.output_names == ["total", "cache_layers_0_keys"]
    assert "forward" not in vars(module)
    cache = module(x)["cache"]
    keys = cache.layers[0].keys
    engine = tilewright.compile(module, {"x": x, "cache": cache}, target="cpu", effort=0)
    assert cache.layers[0].keys is keys  # the caller's object stays as it was
    found = engine(x=x, cache=cache)
    wanted = module(x, cache)
    bound = 8 * 6 * np.finfo(np.float32).eps * float(wanted["cache"].layers[0].keys.abs().max())
    assert isinstance(found["cache"], Cache) and found["cache"].layers[0].limit == 3
    pairs = [(found["total"], wanted["total"]), (found["cache"].layers[0].keys, wanted["cache"].layers[0].keys)]
    for got, want in pairs:
        np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=1e-5, atol=bound)


@dataclasses.dataclass
class Batch:
    words: Any
    extra: dict[str, Any]
    name: str = "first"


def test_dataclasses_and_nested_containers() -> None:
    class Sum(torch.nn.Module):
        def forward(self, batch: Batch, pair: list[Any]) -> Any:
            return Batch(batch.words + pair[0], {"gain": batch.extra["gain"] * pair[1]["right"]})

    x = torch.arange(3.0)
    given = {"batch": Batch(x, {"gain": x + 1}), "pair": [x * 2, {"right": x * 3}]}
    engine = tilewright.compile(Sum().eval(), given, target="cpu", effort=0)
    assert [spec.name for spec in engine.inputs] == ["batch_words", "batch_extra_gain", "pair_0", "pair_1_right"]
    assert [spec.name for spec in engine.outputs] == ["words", "extra_gain"]
    found = engine(**given)
    assert isinstance(found, Batch) and found.name == "first"
    np.testing.assert_array_equal(np.asarray(found.words), (x * 3).numpy())
    np.testing.assert_array_equal(np.asarray(found.extra["gain"]), ((x + 1) * x * 3).numpy())
    again = engine(given["batch"], given["pair"])  # in order, as the module takes them
    np.testing.assert_array_equal(np.asarray(again.extra["gain"]), np.asarray(found.extra["gain"]))


class Pair(NamedTuple):
    first: Any
    second: Any


def test_results_have_the_structure_of_the_modules(tmp_path: Path) -> None:
    class Nested(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"a": [x + 1], "b": (None, Pair(x * 2, {"n": x.shape[0], "flag": True})), "c": (x.sum(),)}

    x = torch.arange(6.0).reshape(3, 2)
    engine = tilewright.compile(Nested().eval(), (x,), {"x": {0: ("rows", 1, 8)}}, target="cpu", effort=0)
    for rows in (x, x[:1]):
        found, wanted = engine(rows), Nested()(rows)
        assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(wanted)
        assert found["b"][0] is None and found["b"][1].second == {"n": len(rows), "flag": True}
        torch.testing.assert_close(found["b"][1].first, rows * 2)
        torch.testing.assert_close(found["c"][0], rows.sum())
    engine.save(tmp_path / "nested.engine")
    assert len(tilewright.load(tmp_path / "nested.engine")(x)) == 4  # a file has the outputs by name and in order


def test_structures_and_tensors_in_order() -> None:
    """None in the place of an argument, named tuples, and one more tensor after them."""

    class Mixed(torch.nn.Module):
        def forward(self, pair: Pair, mask: Any, masks: list[Any], *more: Any, scale: Any = 1.0) -> Any:
            return (pair.first + pair.second["b"] * masks[1] + more[0]) * scale

    x = torch.arange(3.0)
    call = (Pair(x, {"b": x + 1}), None, [None, x * 2], x * 5)
    engine = tilewright.compile(Mixed().eval(), call, example_kwargs={"scale": x - 2}, target="cpu", effort=0)
    torch.testing.assert_close(engine(*call, scale=x - 2), Mixed()(*call, scale=x - 2))
    with pytest.raises(InputError, match="twice"):
        engine(*call, pair_first=x, scale=x)


def test_pytorchs_own_functions_are_models(caplog: pytest.LogCaptureFixture) -> None:
    """They tell no signature, and are in no mode of training."""
    x = torch.tensor([1.5, -2.0, 0.0])
    for function in (torch.sign, torch.add):
        inputs = (x,) * (1 if function is torch.sign else 2)
        engine = tilewright.compile(function, inputs, target="cpu", effort=0)
        torch.testing.assert_close(engine(*inputs), function(*inputs))
    assert "training" not in caplog.text


def test_one_tensor_in_a_list() -> None:
    engine = tilewright.compile(lambda x: [x + 1], (torch.ones(2),), target="cpu", effort=0)
    (found,) = engine(torch.ones(2))
    torch.testing.assert_close(found, torch.full((2,), 2.0))


def test_results_registered_without_keys() -> None:
    """As the results of models of diffusers are."""

    class Result(dict):  # type: ignore[type-arg]
        pass

    pytree = torch.utils._pytree
    pytree._register_pytree_node(
        Result, lambda item: (list(item.values()), list(item)), lambda v, k: Result(zip(k, v, strict=True))
    )

    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Result(sample=x * 2)

    assert import_model(Doubled().eval(), (torch.randn(2),)).output_names == ["sample"]


class Scaled(torch.nn.Module):
    """Numbers beside tensors, and a buffer that is assigned what it holds already."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.randn(8, 4), persistent=False)

    def forward(self, x: Any, scale: float, frames: int = 1, mask: Any = None) -> Any:
        self.places = self.places.to(device=x.device, dtype=x.dtype)
        return (x + self.places[: x.shape[1]]) * scale * frames


def test_numbers_are_given_as_in_the_example_and_buffers_stay_constants(tmp_path: Any) -> None:
    module = Scaled().eval()
    x = torch.randn(2, 3, 4)
    engine = tilewright.compile(module, {"x": x, "scale": 2.0, "frames": 3}, target="cpu", effort=0)
    engine.save(tmp_path / "scaled.engine")
    again = tilewright.load(tmp_path / "scaled.engine", rebuild="always")
    engine = tilewright.load(tmp_path / "scaled.engine")
    assert [spec.name for spec in engine.inputs] == ["x"]
    expected = module(x, 2.0, 3)
    np.testing.assert_allclose(again(x=x, scale=2.0, frames=3), expected, rtol=4 * torch.finfo(x.dtype).eps)
    with pytest.raises(InputError, match="is always .* as in its example"):
        again(x=x, scale=2.5)
    for given in ({"x": x}, {"x": x, "scale": 2.0, "frames": 3}):
        np.testing.assert_allclose(engine(**given), expected, rtol=4 * torch.finfo(x.dtype).eps)
    for wrong in ({"scale": 2.5}, {"frames": x}, {"frames": None}):
        with pytest.raises(InputError, match="is always .* as in its example"):
            engine(x=x, **wrong)
    with pytest.raises(InputError, match="unknown: other"):
        engine(x=x, other=1)


def test_arguments_of_any_name_have_theirs() -> None:
    """Those that ``**options`` takes, in a range of sizes; a batch in each of them."""

    class Free(torch.nn.Module):
        def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
            return x + options["Bias"]["b"] * options["scale"]

    example = {"x": torch.randn(2, 3), "Bias": {"b": torch.randn(2, 3)}, "scale": 2.0}
    shapes = {"x": {0: ("n", 1, 5)}, "Bias_b": {0: ("n", 1, 5)}}
    engine = tilewright.compile(Free().eval(), example, dynamic_shapes=shapes, target="cpu", effort=0)
    assert [spec.name for spec in engine.inputs] == ["x", "Bias_b"]
    given = {"x": torch.randn(4, 3), "Bias": {"b": torch.randn(4, 3)}, "scale": 2.0}
    torch.testing.assert_close(engine(**given), Free()(**given))


class Record(dict):  # type: ignore[type-arg]
    """As results of transformers are: a container that PyTorch knows, and none of Python's own."""


def test_containers_of_other_classes_have_dynamic_sizes() -> None:
    pytree = torch.utils._pytree
    pytree.register_pytree_node(
        Record,
        lambda record: (list(record.values()), list(record)),
        lambda values, keys: Record(zip(keys, values, strict=True)),
        serialized_type_name="tests.Record",
        flatten_with_keys_fn=lambda record: ([(pytree.MappingKey(k), v) for k, v in record.items()], list(record)),
    )

    class Reads(torch.nn.Module):
        def forward(self, given: Record, y: torch.Tensor) -> torch.Tensor:
            return given["hidden"].sum(1) + y

    example = {"given": Record(hidden=torch.randn(3, 4, 2)), "y": torch.randn(3, 2)}
    shapes = {"given_hidden": {0: ("n", 1, 5)}, "y": {0: ("n", 1, 5)}}
    graph = import_model(Reads().eval(), example, shapes)
    assert [str(value.shape[0]) for value in graph.inputs] == ["n", "n"]


@dataclasses.dataclass
class _Scaled:
    x: torch.Tensor
    by: float = 2.0


def test_numbers_in_their_place_and_in_containers() -> None:
    """A number is what it was in the example, wherever it is given; another one is never ignored."""
    x, y = torch.randn(3, 4), torch.randn(3, 4)

    def model(k: int, pair: tuple[torch.Tensor, int], scaled: _Scaled, mask: None, y: torch.Tensor) -> torch.Tensor:
        return k * pair[0] + pair[1] * scaled.x * scaled.by + y

    given = (3, (x, 2), _Scaled(y), None, x)
    engine = tilewright.compile(model, given, target="cpu", effort=0)
    torch.testing.assert_close(engine(*given), model(*given))
    torch.testing.assert_close(engine(x, y, x), model(*given))  # tensors alone
    for place, other in enumerate((4, (x, 5), _Scaled(y, 1.0))):
        with pytest.raises(InputError, match="is always .* as in its example"):
            engine(*given[:place], other, *given[place + 1 :])
    with pytest.raises(InputError, match="always as in its example: k=3"):
        engine(x, y, x, x)


def test_containers_have_the_parts_that_they_had_in_the_example() -> None:
    """Lists of numbers alone are arguments too; one that is longer or shorter than in the example is never ignored."""
    x = torch.randn(3)

    def model(
        xs: list[torch.Tensor], sizes: list[Any] | None = None, more: dict[str, Any] | None = None
    ) -> torch.Tensor:
        return sum(xs) * len(sizes or ()) * (more["scale"] if more else 1)

    given: dict[str, Any] = {"xs": [x, x], "sizes": [(1, 2), 3], "more": {"scale": x}}
    engine = tilewright.compile(model, given, target="cpu", effort=0)
    torch.testing.assert_close(engine(**given), model(**given))
    torch.testing.assert_close(engine(*given.values()), model(**given))
    others: dict[str, Any] = {"xs": [[x], [x, x, x]], "more": [{"scale": x, "shift": 1}],
                              "sizes": [[(1, 2)], [(1, 2), 3, 4], [(1, 2, 3), 3], [(1, 2), 4]]}  # fmt: skip
    for name, values in others.items():
        for value in values:
            with pytest.raises(InputError):
                engine(**{**given, name: value})
            with pytest.raises(InputError):
                engine(*{**given, name: value}.values())


def test_numbers_of_numpy_and_nan_in_their_place() -> None:
    x, y = np.zeros(2), np.ones(3)
    arguments = Arguments(["x", "y"], {"n": 3, "fill": math.nan}, {"n": 1, "fill": 1})
    for number in (3, 3.0, np.int64(3), np.float32(3)):
        assert arguments.in_order((x, number, np.float64("nan"), y))[1] == [x, y]
    with pytest.raises(InputError, match="'n' is always 3"):
        arguments.in_order((x, np.int64(4), math.nan, y))
    assert Arguments(["x", "s"], {"n": 3}, {"n": 1}).in_order((x, np.float32(3)))[1] == [x, np.float32(3)]  # an input


def test_dynamic_shapes_in_order() -> None:
    x = torch.randn(3, 4)
    entries = ({0: ("batch", 1, 8)}, ("batch", None))
    engine = tilewright.compile(lambda x, y: x + y, (x, x + 1), entries, target="cpu", effort=0)
    other = torch.randn(5, 4)
    torch.testing.assert_close(engine(other, other), other + other)
    batch = torch.export.Dim("batch", min=1, max=8)
    for wrong, text in (
        (({0: batch},), "has 1 entries for the arguments x, y"),
        ({"z": {0: batch}}, "names 'z', and the model has the arguments x, y"),
        ({"x": {5: batch}, "y": {5: batch}}, "names axis 5; the input has rank 2"),
        ("batch", "expected a dictionary by the names"),
    ):
        with pytest.raises(ImportModelError, match=text):
            import_model(lambda x, y: x + y, (x, x + 1), wrong)


def test_dynamic_shapes_inside_containers_and_next_to_dimensions_of_pytorch() -> None:
    x, axes = {"a": torch.randn(3), "b": torch.randn(3)}, {0: ("n", 1, 9)}
    graph = import_model(lambda batch: batch["a"] + batch["b"], (x,), {"batch": {"a": axes, "b": axes}})
    assert [str(value.shape[0]) for value in graph.inputs] == ["n", "n"]
    mixed = {"input": {0: ("b", 1, 5), 2: 2 * torch.export.Dim("h", min=2, max=16)}}
    graph = import_model(torch.nn.Conv2d(3, 4, 2, 2).eval(), (torch.randn(2, 3, 8, 8),), mixed)
    assert [str(size) for size in graph.inputs[0].shape] == ["b", "3", "2*h", "8"]
