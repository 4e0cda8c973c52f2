"""Row operations and reductions: which library kernel, how rows are dealt out, whole rows or chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.neutral import neutral_element
from tilewright.launch.jit import JITFunction
from tilewright.library import functions
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import estimate, expected
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.generated.generate import epilogue_function, prologue_function
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.reduce.kernel import (
    arg_extreme,
    cumulative_columns,
    reduce_columns,
    reduce_rows,
)
from tilewright.library.rows.kernel import log_sum_exp, normalize, normalize_chunked, softmax, softmax_chunked
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

_LONGEST_BLOCK = 16384  # longest row that is one block
COLUMN_CHUNK = 1024
ROW_WORK = 16384  # elements that one program should have at least

REDUCTIONS = {"reduce_sum": "sum", "reduce_mean": "mean", "reduce_max": "max", "reduce_min": "min",
               "reduce_product": "product"}  # fmt: skip


CUMULATIVE = {"cumsum": functions.total, "cumprod": functions.times, "cummax": functions.maximum,
              "cummin": functions.minimum}  # fmt: skip


def reduction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor works along rows or axes."""
    anchor = group.anchor
    assert anchor is not None
    if anchor.op in ("softmax", "log_softmax", "layer_norm", "rms_norm"):
        calls = [_row_operation(group, graph)]
    elif anchor.op in REDUCTIONS:
        calls = [reduce_call(group, graph, _along_rows, _over_rows)]
    elif anchor.op in ("argmax", "argmin"):
        calls = [arg_extreme_call(group)]
    elif anchor.op in CUMULATIVE:
        calls = [cumulative_call(group)]
    elif anchor.op == "reduce_log_sum_exp":
        calls = [log_sum_exp_call(group, graph, _log_sum_exp)]
    else:
        raise UnsupportedOperationError(f"no kernel for reduction {anchor.op} (from {anchor.source or 'the graph'})")
    return [row_candidate(calls, group, target)]


def row_candidate(calls: Sequence[KernelCall], group: Group, target: Target) -> Candidate:
    """The candidate of launches that follow each other; the one with the most programs does most of the work."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    flops = simplify(lift(product(anchor.inputs[0].shape)) * 8 + chain_operations(group.nodes))
    moved = total_bytes(group.inputs, group.outputs, group.nodes)
    programs = max((product(call.grid) for call in calls), key=expected)
    cost = estimate(target.machine(), moved, flops, programs, efficiency=0.25)
    further = (len(calls) - 1) * target.machine().launches.kernel
    cost = replace(cost, seconds=cost.seconds + further)
    reasons = {"kernel": calls[-1].kernel.__name__, "grid": str(calls[-1].grid)}
    return Candidate("row kernel", tuple(Stage((call,)) for call in calls), cost, (), reasons)


def row_slots(
    group: Group, graph: Graph, source_shape: Sequence[Size], scale_and_bias: Sequence[Value | None] = ()
) -> tuple[JITFunction, JITFunction, ExtraReferences]:
    """Prologue, epilogue and their operands.

    `scale_and_bias` are operands of a normalisation that its epilogue applies first.
    """
    anchor = group.anchor
    assert anchor is not None
    result, applied = anchor.output, list[Node]()
    if any(value is not None for value in scale_and_bias):
        result, applied = _scaled(anchor, scale_and_bias)
    return _slots(group, graph, source_shape, result, applied)


def _slots(
    group: Group, graph: Graph, source_space: Sequence[Size], result: Value, applied: Sequence[Node]
) -> tuple[JITFunction, JITFunction, ExtraReferences]:
    """The same of a kernel that computes `result`, of which the nodes `applied` make the anchor's output."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    extra = ExtraReferences(parts=True)
    nodes = [node for node in group.nodes if node is not anchor]
    leading = [value for value in group.outputs if value in {out for node in group.prologue for out in node.outputs}]
    prologue = prologue_function(nodes, anchor.inputs[0], graph.constants, extra, leading, source_space)
    following = [value for value in group.outputs if value not in leading]
    epilogue = epilogue_function([*applied, *nodes], result, following[-1], graph.constants, extra, following[:-1])
    return prologue, epilogue, extra


def _scaled(anchor: Node, scale_and_bias: Sequence[Value | None]) -> tuple[Value, list[Node]]:
    """The bare normalised value, and the nodes that make the anchor's output of it."""
    output = anchor.output
    bare = Value(f"{output.name}.normalized", output.dtype, output.shape)
    operations = [(op, value) for op, value in zip(("multiply", "add"), scale_and_bias, strict=False) if value]
    nodes: list[Node] = []
    current = bare
    for position, (op, value) in enumerate(operations):
        last = position == len(operations) - 1
        result = output if last else Value(f"{output.name}.{op}", output.dtype, output.shape)
        nodes.append(Node(op, [current, value], [result], {}, anchor.source))
        current = result
    return bare, nodes


def rows_per_program(rows: Size, columns: Size) -> int:
    """Rows of one program: enough work to be worth starting, and an even number of programs."""
    width = columns if isinstance(columns, int) else COLUMN_CHUNK
    count = max(1, ROW_WORK // max(1, width))
    if not isinstance(rows, int):
        return min(count, 16)
    programs = 2 * -(-rows // (2 * count))
    return max(1, -(-rows // programs))


@dataclass(frozen=True)
class Deal:
    """How the work of a launch is dealt out: to which kernel, in which blocks, with which options of the compiler."""

    kernel: JITFunction
    constants: dict[str, Any]
    grid: tuple[Size, Size, Size]
    options: dict[str, Any] = field(default_factory=dict)


def _dealt(
    deal: Deal, constants: Mapping[str, Any], out: Value, sizes: Mapping[str, Size], extra: ExtraReferences
) -> KernelCall:
    """The launch of a kernel with slots; `sizes` are its parameters that say how much there is."""
    constants = {**constants, **deal.constants}
    operands: dict[str, Operand] = {"out": out}
    types: dict[str, str] = {}
    bind_sizes(dict(sizes), operands, types, constants)
    bind_extra(extra, operands, types)
    return KernelCall(deal.kernel, operands, types, constants, deal.grid, options=deal.options)


@dataclass(frozen=True)
class RowOperation:
    """Softmax or a normalisation over trailing dimensions, with the slots of its kernel."""

    group: Group  # its anchor over [rows..., columns]
    rows: Size
    columns: Size
    prologue: JITFunction
    epilogue: JITFunction
    extra: ExtraReferences
    constants: dict[str, Any]  # what the operation itself says

    @property
    def is_norm(self) -> bool:
        assert self.group.anchor is not None
        return self.group.anchor.op in ("layer_norm", "rms_norm")

    def call(self, deal: Deal) -> KernelCall:
        """The launch; a kernel that is not told `COLUMNS` finds the number at run time."""
        sizes = {"rows": self.rows}
        if "COLUMNS" not in deal.constants:
            sizes["columns"] = self.columns
        return _dealt(deal, self.constants, self.group.outputs[-1], sizes, self.extra)


def row_operation(group: Group, graph: Graph) -> RowOperation:
    """What a row operation's group poses to a kernel."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source = anchor.inputs[0]
    axis = anchor.attributes["axis"]
    if anchor.op in ("softmax", "log_softmax") and axis != source.rank - 1:
        if any(extent != 1 for extent in source.shape[axis + 1 :]):
            raise UnsupportedOperationError(
                f"{anchor.op} over axis {axis} of rank {source.rank}: only the last axis has a kernel; "
                "permute the axis to the end first"
            )
    rows, columns = product(source.shape[:axis]), product(source.shape[axis:])
    shape = (*source.shape[:axis], columns)
    is_norm = anchor.op in ("layer_norm", "rms_norm")
    if shape != source.shape:
        group = with_space(group, shape)
        anchor = group.anchor
        assert anchor is not None
    prologue, epilogue, extra = row_slots(group, graph, shape, anchor.inputs[1:] if is_norm else ())
    constants: dict[str, Any] = {"PROLOGUE": prologue, "EPILOGUE": epilogue, "TYPE": language_type(source.dtype)}
    if is_norm:
        constants |= {"CENTER": anchor.op == "layer_norm", "epsilon": float(anchor.attributes["epsilon"])}
    else:
        constants["LOG"] = anchor.op == "log_softmax"
    return RowOperation(group, rows, columns, prologue, epilogue, extra, constants)


def _row_operation(group: Group, graph: Graph) -> KernelCall:
    operation = row_operation(group, graph)
    columns, count = operation.columns, rows_per_program(operation.rows, operation.columns)
    constants: dict[str, Any] = {"ROWS": count}
    if isinstance(columns, int) and columns <= _LONGEST_BLOCK:
        constants["COLUMNS"] = columns
        kernel = normalize if operation.is_norm else softmax
    else:
        constants["BLOCK"] = COLUMN_CHUNK
        kernel = normalize_chunked if operation.is_norm else softmax_chunked
    return operation.call(Deal(kernel, constants, (ceil_divide(operation.rows, count), 1, 1)))


def with_space(group: Group, shape: Sequence[Size]) -> Group:
    """The same group with an anchor over [rows..., columns]: trailing dimensions seen as one."""
    anchor = group.anchor
    assert anchor is not None
    flat = Value(f"{anchor.output.name}.rows", anchor.output.dtype, tuple(shape))
    inputs = [anchor.inputs[0]]
    nodes: list[Node] = []
    for value in anchor.inputs[1:]:
        if value is None or value.rank <= 1:
            inputs.append(value)
            continue
        line = Value(f"{value.name}.row", value.dtype, (product(value.shape),))
        nodes.append(Node("reshape", [value], [line], {"shape": line.shape}))
        inputs.append(line)
    flattened = Node(anchor.op, inputs, [flat], anchor.attributes, anchor.source)
    restored = Node("reshape", [flat], [anchor.output], {"shape": anchor.output.shape})
    return Group(group.kind, [*group.prologue, *nodes, flattened, restored, *group.epilogue], group.inputs,
                 group.outputs, flattened, group.name)  # fmt: skip


def reduced_space(anchor: Node) -> tuple[Size, Size, Size]:
    """The input of a reduction over neighbouring axes, seen as [outer, reduced, inner]."""
    source = anchor.inputs[0]
    assert source is not None
    axes = [axis for axis in anchor.attributes["axes"] if source.shape[axis] != 1]
    first, last = (min(axes), max(axes)) if axes else (source.rank, source.rank - 1)
    if any(axis not in axes and source.shape[axis] != 1 for axis in range(first, last + 1)):
        raise UnsupportedOperationError(
            f"{anchor.op} over axes {tuple(axes)} of {source!r}: the axes must be neighbours; permute them together"
        )
    return product(source.shape[:first]), product(source.shape[first : last + 1]), product(source.shape[last + 1 :])


def reduce_call(
    group: Group, graph: Graph, along_rows: Callable[[Size, Size], Deal], over_rows: Callable[[Size, Size, Size], Deal]
) -> KernelCall:
    """A reduction over neighbouring axes: `along_rows(outer, reduced)` deals out one whose axes are the last ones,
    `over_rows(outer, reduced, inner)` another."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    outer, reduced, inner = reduced_space(anchor)
    kind, dtype = REDUCTIONS[anchor.op], compute_type(anchor.inputs[0].dtype)
    source: tuple[Size, Size] = (outer, reduced) if inner == 1 else (simplify(lift(outer) * reduced), inner)
    prologue, epilogue, extra = reduce_slots(group, graph, source, (outer, inner))
    constants: dict[str, Any] = {"KIND": kind, "INITIAL": neutral_element(kind, dtype), "TYPE": language_type(dtype),
                                 "PROLOGUE": prologue, "EPILOGUE": epilogue}  # fmt: skip
    deal = along_rows(outer, reduced) if inner == 1 else over_rows(outer, reduced, inner)
    sizes = {"rows": outer, "columns": reduced} if inner == 1 else {"reduced": reduced, "inner": inner}
    return _dealt(deal, constants, group.outputs[-1], sizes, extra)


def _along_rows(outer: Size, reduced: Size) -> Deal:
    block = reduced if isinstance(reduced, int) and reduced <= COLUMN_CHUNK else COLUMN_CHUNK
    count = rows_per_program(outer, reduced)
    constants = {"ROWS": count, "BLOCK": block, "MASK": not divides(block, reduced)}
    return Deal(reduce_rows, constants, (ceil_divide(outer, count), 1, 1))


def _over_rows(outer: Size, reduced: Size, inner: Size) -> Deal:
    block = inner if isinstance(inner, int) and inner <= 512 else 512
    block_r = reduced if isinstance(reduced, int) and reduced <= 32 else 32
    constants = {"BLOCK_R": block_r, "BLOCK": block, "MASK_R": not divides(block_r, reduced),
                 "MASK": not divides(block, inner)}  # fmt: skip
    return Deal(reduce_columns, constants, (ceil_divide(inner, block), outer, 1))


def reduce_slots(
    group: Group, graph: Graph, source_space: tuple[Size, Size], result_space: tuple[Size, Size]
) -> tuple[JITFunction, JITFunction, ExtraReferences]:
    """Slots of a reduction, whose result is seen as [outer, inner]."""
    anchor = group.anchor
    assert anchor is not None
    flat = Value(f"{anchor.output.name}.reduced", anchor.output.dtype, result_space)
    shaped = Node("reshape", [flat], [anchor.output], {"shape": anchor.output.shape})
    return _slots(group, graph, source_space, flat, [shaped])


def log_sum_exp_call(group: Group, graph: Graph, along_rows: Callable[[Size, Size], Deal]) -> KernelCall:
    """The launch of `library.rows.kernel.log_sum_exp`, dealt out by `along_rows(outer, reduced)`.

    Raises `NotImplementedError` unless the last axes are reduced.
    """
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    outer, reduced, inner = reduced_space(anchor)
    if inner != 1:
        raise NotImplementedError(f"{group.name}: only the last axes have a kernel")
    prologue, epilogue, extra = reduce_slots(group, graph, (outer, reduced), (outer, 1))
    constants = {"PROLOGUE": prologue, "EPILOGUE": epilogue,
                 "TYPE": language_type(compute_type(anchor.inputs[0].dtype))}  # fmt: skip
    sizes = {"rows": outer, "columns": reduced}
    return _dealt(along_rows(outer, reduced), constants, group.outputs[-1], sizes, extra)


def _log_sum_exp(outer: Size, reduced: Size) -> Deal:
    count = rows_per_program(outer, reduced)
    return Deal(log_sum_exp, {"ROWS": count, "BLOCK": COLUMN_CHUNK}, (ceil_divide(outer, count), 1, 1))


def arg_extreme_call(group: Group) -> KernelCall:
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source, axis = anchor.inputs[0], anchor.attributes["axis"]
    _only_anchor(group)
    inner, reduced = product(source.shape[axis + 1 :]), source.shape[axis]
    outer = product(source.shape[:axis])
    largest = anchor.op == "argmax"
    block = min(reduced, COLUMN_CHUNK) if isinstance(reduced, int) else COLUMN_CHUNK
    constants: dict[str, Any] = {
        "LARGEST": largest, "INITIAL": neutral_element("max" if largest else "min", source.dtype), "BLOCK": block,
    }  # fmt: skip
    operands: dict[str, Operand] = {"x": source, "out": anchor.output}
    types: dict[str, str] = {}
    sizes = {"reduced": reduced, "inner": inner, "outer_stride": simplify(lift(reduced) * inner),
             "reduced_stride": inner}  # fmt: skip
    bind_sizes(sizes, operands, types, constants)
    return KernelCall(arg_extreme, operands, types, constants, (simplify(lift(outer) * inner), 1, 1))


def cumulative_call(group: Group) -> KernelCall:
    """A running sum or its kin."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source, axis = anchor.inputs[0], anchor.attributes["axis"]
    _only_anchor(group)
    length, inner, outer = source.shape[axis], product(source.shape[axis + 1 :]), product(source.shape[:axis])
    operands: dict[str, Operand] = {"x": source, "out": anchor.output}
    constants: dict[str, Any] = {
        "TYPE": language_type(source.dtype), "COMBINE": CUMULATIVE[anchor.op], "REVERSE": anchor.attributes["reverse"],
    }  # fmt: skip
    types: dict[str, str] = {}
    constants["BLOCK"] = block = min(inner, COLUMN_CHUNK) if isinstance(inner, int) else COLUMN_CHUNK
    bind_sizes({"length": length, "inner": inner}, operands, types, constants)
    return KernelCall(cumulative_columns, operands, types, constants, (outer, ceil_divide(inner, block), 1))


def _only_anchor(group: Group) -> None:
    if group.nodes != [group.anchor]:
        raise NotImplementedError(f"{group.name}: this kernel has no slots")
