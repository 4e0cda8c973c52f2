"""Row operations of a group: softmax, normalisations and log(sum(exp)), with the slots of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.language.function import SourceFunction
from tilewright.launch.jit import JITFunction
from tilewright.library.candidate import KernelCall
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.reduce.problem import Deal, Reduction, anchor_slots, divided, reduction_of
from tilewright.symbolic import Size, product

ROW_OPERATIONS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "reduce_log_sum_exp")


@dataclass(frozen=True)
class RowOperation:
    """Softmax or a normalisation over trailing dimensions, with the slots of its kernel."""

    group: Group  # its anchor over [rows..., columns]
    rows: Size
    columns: Size
    prologue: JITFunction
    epilogue: SourceFunction
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
        return divided(deal, self.constants, self.group.outputs[-1], sizes, self.extra)


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


def row_slots(
    group: Group, graph: Graph, source_shape: Sequence[Size], scale_and_bias: Sequence[Value | None] = ()
) -> tuple[JITFunction, SourceFunction, ExtraReferences]:
    """Prologue, epilogue and their operands.

    `scale_and_bias` are operands of a normalisation that its epilogue applies first.
    """
    anchor = group.anchor
    assert anchor is not None
    result, applied = anchor.output, list[Node]()
    if any(value is not None for value in scale_and_bias):
        result, applied = _scaled(anchor, scale_and_bias)
    return anchor_slots(group, graph, source_shape, result, applied)


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


def log_sum_exp_of(group: Group, graph: Graph) -> Reduction:
    """The reduction of a group whose anchor is `log(sum(exp))`.

    Raises `NotImplementedError` unless the last axes are reduced.
    """
    problem = reduction_of(group, graph)
    if problem.inner != 1:
        raise NotImplementedError(f"{group.name}: only the last axes have a kernel")
    return problem
