"""The op `argsort`: the kernel that sorts, comparisons, and NumPy where a target has neither."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tests.host.cuda_stand_in import Driver  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.build.tuning import Tuning  # noqa: E402
from tilewright.dtypes import BY_NAME, DType, float32, int1  # noqa: E402
from tilewright.errors import ShapeError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.graph.build import GraphBuilder  # noqa: E402
from tilewright.graph.core import Graph  # noqa: E402
from tilewright.graph.kernel_facts import KernelFacts  # noqa: E402
from tilewright.graph.passes.sorting import sorting  # noqa: E402
from tilewright.graph.pipeline import optimize  # noqa: E402
from tilewright.graph.target_passes import TargetPass, TargetPasses  # noqa: E402
from tilewright.library import select  # noqa: E402
from tilewright.library.sort import simt  # noqa: E402
from tilewright.targets.cpu.backend import CPUBackend  # noqa: E402
from tilewright.targets.library_facts import CPU_KERNELS, GPU_KERNELS  # noqa: E402
from tilewright.targets.registry import get_targets, graph_passes  # noqa: E402

NAMES = "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()


def odd_numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Many equal numbers, the extremes of the type among them; floats with both zeros, infinities and NaN."""
    if not dtype.is_float:
        limits = np.iinfo(dtype.numpy)
        found = rng.integers(max(limits.min, -300), min(limits.max, 300), shape).astype(dtype.numpy)
        found.flat[[0, -1, found.size // 2]] = limits.min, limits.max, limits.max
        return found
    found = rng.integers(-20, 20, shape) / 4
    for step, number in ((7, np.nan), (9, -0.0), (10, 0.0), (23, np.inf), (29, -np.inf)):
        found.flat[step::step] = number
    found.flat[3::31] = np.copysign(np.nan, -1)
    return found.astype(dtype.numpy)


def expected(x: np.ndarray, axis: int, count: int, descending: bool) -> np.ndarray:
    """By Python's own sort, which keeps the order of equal elements."""
    rows = np.moveaxis(x, axis, -1)
    found = np.empty((*rows.shape[:-1], count), np.int64)
    for place in np.ndindex(rows.shape[:-1]):
        row = [float(number) if x.dtype.kind not in "iu" else int(number) for number in rows[place]]
        keys = [(number != number, 0 if number != number else number) for number in row]
        order = sorted(range(len(row)), key=lambda n: keys[n], reverse=descending)
        if descending:  # equal elements in the order of their positions
            order = sorted(range(len(row)), key=lambda n: (-keys[n][0], -keys[n][1]))
        found[place] = order[:count]
    return np.moveaxis(found, -1, axis)


# Of a target that has no kernel.
COMPARED = KernelFacts(compared_row=8192, selected=8)
LONGEST_COMPARED, MOST_SELECTED = CPU_KERNELS.compared_row, CPU_KERNELS.selected
CASES = [  # shape, axis, count
    ((2, LONGEST_COMPARED + 53), 1, LONGEST_COMPARED + 53),
    ((2, LONGEST_COMPARED + 20, 3), 1, MOST_SELECTED + 1),
    ((3, LONGEST_COMPARED - 8), 1, LONGEST_COMPARED - 8),
    ((2, LONGEST_COMPARED - 8, 3), 1, MOST_SELECTED + 3),
    ((3, 60), 1, MOST_SELECTED),
    ((1,), 0, 1),
]


def graph_of(dtype: DType, cases: list[tuple[tuple[int, ...], int, int]] = CASES) -> Graph:
    b = GraphBuilder("sorting")
    for number, (shape, axis, count) in enumerate(cases):
        x = b.input(f"x_{number}", dtype, shape)
        for descending in (False, True):
            b.output(b.op("argsort", [x], axis=axis, count=count, descending=descending), f"y_{number}_{descending}")
    return b.finish()


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", NAMES)
def test_every_type_is_sorted_by_every_form(name: str, rng: np.random.Generator) -> None:
    graph = graph_of(BY_NAME[name])
    inputs = {x.name: odd_numbers(rng, x.dtype, x.shape) for x in graph.inputs}
    compared = sorting(graph, COMPARED)
    assert not any(node.op == "argsort" for node in compared.nodes)
    ways = [reference.run(graph, inputs), reference.run(compared, inputs)]
    if name in ("float16", "float32", "float64", "int8", "int64", "uint32"):
        ways.append(build(graph, "cpu", tuning=Tuning(effort=0)).run(inputs))
    for number, (_, axis, count) in enumerate(CASES):
        for descending in (False, True):
            wanted = expected(inputs[f"x_{number}"], axis, count, descending)
            for found in ways:
                np.testing.assert_array_equal(found[f"y_{number}_{descending}"], wanted)


def test_rows_of_any_number_and_length(rng: np.random.Generator) -> None:
    """More rows than programs, and rows so long that comparing all pairs would not end."""
    b = GraphBuilder("rows")
    rows, columns = b.symbol("rows", 1, 4000), b.symbol("columns", 1, 100_000)
    x = b.input("x", float32, (rows, columns))
    b.output(b.op("argsort", [x], axis=1, count=columns), "y")
    engine = build(b.finish(), "cpu", tuning=Tuning(effort=0))
    assert not any("NumPy" in remark for remark in engine.remarks)
    for shape in ((1, 100_000), (301, 70), (3, 1), (4000, 2)):
        numbers = odd_numbers(rng, float32, shape)
        np.testing.assert_array_equal(engine.run({"x": numbers})["y"], np.argsort(numbers, axis=1, kind="stable"))


def test_targets_without_the_kernel_compare_or_leave_it_to_numpy(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = select.MAKERS["cpu"]()
    without = replace(makers, own={kind: maker for kind, maker in makers.own.items() if kind != "sorting"})
    monkeypatch.setitem(select.MAKERS, "cpu", lambda: without)
    passes = TargetPasses(before=[TargetPass(sorting, COMPARED, required=True)])
    monkeypatch.setattr(CPUBackend, "graph_passes", passes)
    cases = [
        ((2, COMPARED.compared_row + 1), 1, COMPARED.selected + 1),
        ((2, COMPARED.compared_row + 1), 1, COMPARED.selected),
        ((2, 100), 1, 100),
    ]
    graph = graph_of(float32, cases)
    assert sum(node.op == "argsort" for node in sorting(graph, COMPARED).nodes) == 2
    engine = build(graph, "cpu", tuning=Tuning(effort=0))
    assert sum("run by NumPy" in remark for remark in engine.remarks) == 2
    inputs = {x.name: odd_numbers(rng, x.dtype, x.shape) for x in graph.inputs}
    found = engine.run(inputs)
    for number, (_, axis, count) in enumerate(cases):
        wanted = expected(inputs[f"x_{number}"], axis, count, True)
        np.testing.assert_array_equal(found[f"y_{number}_True"], wanted)


GPU_CASES = [  # shape, axis, count: rows in one network, merged tiles, first elements of tiles, and of these
    ((37, 5), 1, 5),
    ((2, 3, 50), 1, 3),
    ((2, 33), 1, 33),
    ((1, 301), 1, 301),
    ((2, 600), 1, 3),
    ((2, 5_001), 1, 4),
    ((5, 1), 1, 1),
    ((4, 300), 1, 1),
]


@pytest.fixture
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of 32 elements, so that short rows take every way that long ones do, in code that compiles at once."""
    monkeypatch.setattr(simt, "STAGES", 5)
    monkeypatch.setattr(simt, "NETWORK_ELEMENTS", 32)
    monkeypatch.setattr(simt, "SELECTED", 5)
    monkeypatch.setattr(simt, "CHUNKS", 2)


@pytest.fixture
def by_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long rows are sorted by a radix sort, however short they are."""
    monkeypatch.setattr(simt, "MERGE_CLOCKS", 1e9)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", NAMES)
def test_gpus_sort_every_type_by_every_form(
    name: str, small_networks: None, driver: Driver, rng: np.random.Generator
) -> None:
    """On the stand-in for a GPU."""
    cases = GPU_CASES if name == "float32" else GPU_CASES[5:6] if BY_NAME[name].itemsize == 8 else GPU_CASES[3:4]
    b = GraphBuilder("sorting")
    for number, (shape, axis, count) in enumerate(cases):
        x = b.input(f"x_{number}", BY_NAME[name], shape)
        b.output(b.op("argsort", [x], axis=axis, count=count, descending=number % 2 == 0), f"y_{number}")
    graph = b.finish()
    inputs = {x.name: odd_numbers(rng, x.dtype, x.shape) for x in graph.inputs}
    found = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0)).run(inputs)
    for number, (_, axis, count) in enumerate(cases):
        wanted = expected(inputs[f"x_{number}"], axis, count, number % 2 == 0)
        np.testing.assert_array_equal(found[f"y_{number}"], wanted)


@pytest.mark.parametrize("count", ["columns", 4])
def test_gpus_sort_rows_of_any_number_and_length(
    count: str | int, small_networks: None, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("rows")
    rows, columns = b.symbol("rows", 1, 100_000), b.symbol("columns", 4, 1_000)
    x = b.input("x", float32, (rows, columns))
    b.output(b.op("argsort", [x], axis=1, count=columns if count == "columns" else count), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    for shape in ((1, 1_000), (301, 70), (3, 5), (2, 32), (1, 33)):
        numbers = odd_numbers(rng, float32, shape)
        order = np.argsort(numbers, axis=1, kind="stable")
        wanted = order if count == "columns" else order[:, :count]
        np.testing.assert_array_equal(engine.run({"x": numbers})["y"], wanted)


@pytest.mark.parametrize(
    ("name", "shape", "compared"),
    [
        ("int64", (1, 600), True),
        ("float32", (2, 2_000), True),
        ("float32", (1, 300), False),
        ("int32", (64, 1_000), False),
    ],
)
def test_gpus_compare_the_pairs_of_few_long_rows(
    name: str, shape: tuple[int, int], compared: bool, driver: Driver, rng: np.random.Generator
) -> None:
    """All SMs compare; a network has one for each row."""
    b = GraphBuilder("rows")
    b.output(b.op("argsort", [b.input("x", BY_NAME[name], shape)], axis=1, count=shape[1] - 1), "y")
    graph = b.finish()
    assert any(node.op == "argsort" for node in sorting(graph, GPU_KERNELS).nodes) != compared
    if compared:
        numbers = odd_numbers(rng, BY_NAME[name], shape)
        found = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0)).run({"x": numbers})["y"]
        np.testing.assert_array_equal(found, expected(numbers, 1, shape[1] - 1, False))


@pytest.mark.parametrize(("targets", "compared"), [(["cuda:sm_90a"], True), (["cpu", "cuda:sm_90a"], False)])
def test_pairs_are_compared_where_that_is_faster_on_all_targets(targets: list[str], compared: bool) -> None:
    b = GraphBuilder("rows")
    b.output(b.op("argsort", [b.input("x", float32, (2, 2_000))], axis=1, count=2_000), "y")
    graph = optimize(b.finish(), graph_passes(get_targets(targets)))
    assert any(node.op == "argsort" for node in graph.nodes) != compared


@pytest.mark.parametrize("name", ["int8", "bfloat16", "uint16", "float32"])
def test_gpus_sort_long_rows_by_digits(
    name: str, small_networks: None, by_digits: None, driver: Driver, rng: np.random.Generator
) -> None:
    dtype, descending = BY_NAME[name], name != "uint16"
    b = GraphBuilder("rows")
    columns = b.symbol("columns", 33, 5_000) if name == "float32" else 301
    x = b.input("x", dtype, (3, columns))
    b.output(b.op("argsort", [x], axis=1, count=columns, descending=descending), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert any("move_by_digit" in str(step.evidence["reasons"]) for step in engine.plan.steps)
    for columns in (301, 64, 33) if name == "float32" else (301,):
        numbers = odd_numbers(rng, dtype, (3, columns))
        found = engine.run({"x": numbers})["y"]
        np.testing.assert_array_equal(found, expected(numbers, 1, columns, descending))


def test_what_cannot_be_sorted() -> None:
    b = GraphBuilder("wrong")
    with pytest.raises(ShapeError, match="the count is 4, and dimension 1"):
        b.op("argsort", [b.input("x", float32, (2, 3))], axis=1, count=4)
    with pytest.raises(ShapeError, match="no numbers to sort"):
        b.op("argsort", [b.input("y", int1, (3,))], axis=0, count=3)


class Ordered(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        middle = x.median(-1)
        return (
            *x.sort(dim=-1, descending=True, stable=True),
            x.argsort(dim=-1, stable=True),
            *x.topk(12, -1),
            *x.kthvalue(3, -1),
            middle.values,
            x.gather(-1, middle.indices[..., None]),
            x.flatten().median(),
        )


@pytest.mark.parametrize("way", ["export", "torch.compile"])
def test_pytorch_sorts_rows_of_any_length(way: str) -> None:
    """A range of lengths of which the longest are beyond what is compared; positions of equal elements may differ."""
    torch.manual_seed(0)
    module, x = Ordered().eval(), torch.randn(2, 9000)
    if way == "export":
        call = tilewright.compile(module, (x,), dynamic_shapes={"x": {1: ("length", 16, 50_000)}}, target="cpu")
    else:
        torch._dynamo.reset()
        call = torch.compile(module, backend="tilewright", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for length in (9000, 16, 20_001):
            x = torch.randn(2, length)
            for found, wanted in zip(call(x), module(x), strict=True):
                torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "shape", "axis", "count", "digits"),
    [
        ("float32", (37, 5), 1, 5, False),
        ("float16", (3, 301), 1, 301, False),
        ("int8", (301, 3), 0, 301, True),
        ("bfloat16", (2, 301), 1, 301, True),
        ("float32", (2, 5_001), 1, 4, False),
        ("float64", (9, 19), 1, 19, False),
        ("int64", (30, 4), 0, 7, False),
        ("uint64", (2, 70), 1, 70, False),
    ],
)
@pytest.mark.parametrize("with_places", [False, True])
def test_gpus_store_the_numbers_in_order(
    name: str, shape: tuple[int, int], axis: int, count: int, digits: bool, with_places: bool,
    small_networks: None, driver: Driver, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator,
) -> None:  # fmt: skip
    """The kernel that finds positions looks the elements up; positions that nobody asks for are not stored."""
    if digits:
        monkeypatch.setattr(simt, "MERGE_CLOCKS", 1e9)
    dtype = BY_NAME[name]
    b = GraphBuilder("sorting")
    x = b.input("x", dtype, shape)
    places = b.op("argsort", [x], axis=axis, count=count, descending=count % 2 == 0)
    b.output(b.op("gather_elements", [x, places], axis=axis), "values")
    if with_places:
        b.output(places, "places")
    numbers = odd_numbers(rng, dtype, shape)
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert not any("gather_elements" in engine.kernel_name(c.kernel) for s in engine.plan.steps for c in s.choices)
    found = engine.run({"x": numbers})
    order = expected(numbers, axis, count, count % 2 == 0)
    wanted = np.take_along_axis(numbers, order, axis)
    assert found["values"].tobytes() == np.ascontiguousarray(wanted).tobytes()  # -0.0 and NaN as they were
    if with_places:
        np.testing.assert_array_equal(found["places"], order)
