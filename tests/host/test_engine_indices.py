"""Indices out of range are told, and never leave a tensor; tensors without elements are refused."""

import numpy as np
import pytest

from tilewright import dtypes
from tilewright.build.builder import build
from tilewright.engine.plan_json import plan_from_json, plan_to_json
from tilewright.errors import InputError, ShapeError
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder

SCATTERS = ("scatter_update", "scatter_reduce")
TABLE = np.arange(20, dtype=np.float32).reshape(5, 4)


def looked_up(op: str, prepare=lambda builder, indices: indices):
    """The graph that looks `indices` up in (or writes updates to) a table of five rows."""
    builder = GraphBuilder("lookup")
    table = builder.input("table", dtypes.float32, (5, 4))
    shape = (3, 4) if op == "gather_elements" else (3,)
    indices = prepare(builder, builder.input("indices", dtypes.int64, shape))
    updates = [builder.input("updates", dtypes.float32, (3, 4))] if op in SCATTERS else []
    more = {"reduction": "add"} if op == "scatter_reduce" else {}
    builder.output(builder.op(op, [table, indices, *updates], axis=0, source="embed", **more), "y")
    return builder.finish()


def arguments(op: str, first: int) -> dict[str, np.ndarray]:
    shape = (3, 4) if op == "gather_elements" else (3,)
    indices = np.ones(shape, np.int64)
    indices.flat[0] = first
    given = {"table": TABLE, "indices": indices}
    return {**given, "updates": -TABLE[:3]} if op in SCATTERS else given


def count_from_end(builder, indices):
    """What importers write around indices."""
    wrapped = builder.op("add", [indices, builder.constant(np.array(5))])
    test = builder.op("less", [indices, builder.constant(np.array(0))])
    return builder.op("where", [test, wrapped, indices])


def through_views(builder, indices):
    narrow = builder.op("cast", [builder.op("reshape", [indices], shape=(1, 3))], dtype=dtypes.int32)
    return builder.op("reshape", [narrow], shape=(3,))


def computed(builder, indices):
    return builder.op("multiply", [indices, indices])


@pytest.mark.parametrize("op", ["gather", "gather_elements", *SCATTERS])
def test_wrong_indices_are_named(op):
    graph = looked_up(op)
    engine = build(graph)
    for index in (0, 4, -5):
        given = arguments(op, index)
        np.testing.assert_array_equal(engine.run(given)["y"], reference.run(graph, given)["y"])
    for index in (5, -6, 1 << 40, -(1 << 63)):
        given = arguments(op, index)
        with pytest.raises(InputError, match=rf"'indices' holds {index}, .*{op} on 'table' \(embed\) takes -5..4"):
            engine.run(given)
        with pytest.raises(InputError, match=rf"{op}: the index {index} is out of range: it takes -5..4"):
            reference.run(graph, given)


@pytest.mark.parametrize("prepare", [count_from_end, through_views])
def test_the_range_is_followed_to_the_input(prepare):
    engine = build(looked_up("gather", prepare))
    np.testing.assert_array_equal(engine.run(arguments("gather", -5))["y"], TABLE[[0, 1, 1]])
    for index in (5, -6):
        with pytest.raises(InputError, match=rf"holds {index}, .* takes -5..4"):
            engine.run(arguments("gather", index))


def test_added_numbers_move_the_range():
    engine = build(looked_up("gather", lambda b, indices: b.op("add", [indices, b.constant(np.array(2))])))
    np.testing.assert_array_equal(engine.run(arguments("gather", 2))["y"], TABLE[[4, 3, 3]])
    with pytest.raises(InputError, match=r"holds 3, .* takes -7..2"):
        engine.run(arguments("gather", 3))


def test_each_index_of_a_tuple_has_its_own_range():
    """As importers number the elements of two dimensions: (i * 4) + j."""
    builder = GraphBuilder("tuples")
    table = builder.input("table", dtypes.float32, (5, 4))
    tuples = builder.input("tuples", dtypes.int64, (3, 2))
    parts = []
    for place, extent in enumerate((5, 4)):
        part = builder.op("slice", [tuples], axis=1, start=place, stop=place + 1)
        part = builder.op("reshape", [part], shape=(3,))
        test, wrapped = builder.op("less", [part, 0]), builder.op("add", [part, extent])
        parts.append(builder.op("where", [test, wrapped, part]))
    flat = builder.op("add", [builder.op("multiply", [parts[0], 4]), parts[1]])
    builder.output(builder.op("gather", [builder.op("reshape", [table], shape=(20,)), flat], axis=0), "y")
    engine = build(builder.finish())
    assert plan_from_json(plan_to_json(engine.plan)).index_ranges == engine.plan.index_ranges
    tuples = np.array([[0, 3], [-5, -4], [4, 0]])
    np.testing.assert_array_equal(engine.run({"table": TABLE, "tuples": tuples})["y"], TABLE[tuple(tuples.T)])
    for index, ends in (((0, 4), "-4..3"), ((5, 0), "-5..4"), ((0, -5), "-4..3")):
        with pytest.raises(InputError, match=f"takes {ends}"):
            engine.run({"table": TABLE, "tuples": np.array([index, (0, 0), (1, 1)])})


def test_one_place_of_a_dimension_of_any_size_has_a_range():
    builder = GraphBuilder("first")
    table = builder.input("table", dtypes.float32, (5, 4))
    indices = builder.input("indices", dtypes.int64, (builder.symbol("count", 2, 8),))
    for place in range(3):  # there may be no third one
        index = builder.op("reshape", [builder.op("slice", [indices], axis=0, start=place, stop=place + 1)], shape=())
        builder.output(builder.op("gather", [table, index], axis=0), f"row_{place}")
    engine = build(builder.finish())
    assert plan_from_json(plan_to_json(engine.plan)).index_ranges == engine.plan.index_ranges
    assert [allowed.column for allowed in engine.plan.index_ranges] == [0, 1]
    found = engine.run({"table": TABLE, "indices": np.array([4, 2, 0, 99])})
    np.testing.assert_array_equal(found["row_1"], TABLE[2])
    for indices in ([5, 0, 0], [0, 5, 0]):
        with pytest.raises(InputError, match="takes -5..4"):
            engine.run({"table": TABLE, "indices": np.array(indices)})


def test_computed_indices_are_clamped_and_never_written():
    gather = build(looked_up("gather", computed))
    np.testing.assert_array_equal(gather.run(arguments("gather", 1 << 20))["y"], TABLE[[4, 1, 1]])
    elements = build(looked_up("gather_elements", computed))
    assert elements.run(arguments("gather_elements", 1 << 20))["y"][0, 0] == TABLE[4, 0]
    scatter = build(looked_up("scatter_update", computed))
    assert not scatter.plan.index_ranges
    expected = TABLE.copy()
    expected[1] = -TABLE[2]
    for index in (5 * 3, 1 << 20, 3037000500):  # the last one's square is negative
        np.testing.assert_array_equal(scatter.run(arguments("scatter_update", index))["y"], expected)


def test_ranges_may_be_symbolic_and_are_saved():
    builder = GraphBuilder("rows")
    rows = builder.symbol("rows", 1, 8)
    table = builder.input("table", dtypes.float32, (rows, 4))
    indices = builder.input("indices", dtypes.int32, (2,))
    builder.output(builder.op("gather", [table, indices], axis=0), "y")
    builder.output(builder.op("gather", [table, builder.constant(np.array([0, 6]))], axis=0), "fixed")
    engine = build(builder.finish())
    assert plan_from_json(plan_to_json(engine.plan)).index_ranges == engine.plan.index_ranges
    outputs = engine.run({"table": TABLE, "indices": np.array([4, -5], np.int32)})
    np.testing.assert_array_equal(outputs["y"], TABLE[[4, 0]])
    np.testing.assert_array_equal(outputs["fixed"], TABLE[[0, 4]])  # clamped: the sizes are known at run only
    with pytest.raises(InputError, match=r"holds 3, .* takes -3..2"):
        engine.run({"table": TABLE[:3], "indices": np.array([1, 3], np.int32)})


def test_constants_out_of_range_are_reported_when_building():
    builder = GraphBuilder("constant")
    table = builder.input("table", dtypes.float32, (5, 4))
    builder.output(builder.op("gather", [table, builder.constant(np.array([1, 7]))], axis=0), "y")
    with pytest.raises(ShapeError, match=r"the index 7 is out of range; dimension 0 of .*table.* takes -5..4"):
        build(builder.finish())


def test_positions_beyond_a_table_are_clamped():
    builder = GraphBuilder("positions")
    table = builder.input("table", dtypes.float32, (5, 4))
    positions = builder.op("iota", [], shape=(7,), axis=0, dtype=dtypes.int64, start=0, step=1)
    builder.output(builder.op("gather", [table, positions], axis=0), "y")
    np.testing.assert_array_equal(build(builder.finish()).run({"table": TABLE})["y"], TABLE[[0, 1, 2, 3, 4, 4, 4]])


@pytest.mark.parametrize("shapes", [((0, 4), (4, 8)), ((3, 0), (0, 8)), ((3, 4), (4, 0))])
def test_tensors_without_elements_are_computed_by_the_host(shapes):
    builder = GraphBuilder("empty")
    a, b = (builder.input(name, dtypes.float32, shape) for name, shape in zip("ab", shapes, strict=True))
    builder.output(builder.op("matmul", [a, b]), "y")
    arrays = {name: np.ones(shape, np.float32) for name, shape in zip("ab", shapes, strict=True)}
    result = build(builder.finish()).run(arrays)["y"]
    np.testing.assert_array_equal(result, arrays["a"] @ arrays["b"])
    assert result.dtype == np.float32


def test_empty_parts_of_a_concat_are_fine():
    builder = GraphBuilder("parts")
    empty, rest = (builder.input(name, dtypes.float32, (rows, 4)) for name, rows in (("empty", 0), ("rest", 2)))
    builder.output(builder.op("concat", [empty, rest], axis=0), "y")
    outputs = build(builder.finish()).run({"empty": TABLE[:0], "rest": TABLE[:2]})
    np.testing.assert_array_equal(outputs["y"], TABLE[:2])


def test_sizes_begin_at_one():
    builder = GraphBuilder("nothing")
    x = builder.input("x", dtypes.float32, (builder.symbol("batch", 0, 4), 3))
    builder.output(builder.op("add", [x, x]), "y")
    with pytest.raises(ShapeError, match="batch.* may be 0"):
        build(builder.finish())
