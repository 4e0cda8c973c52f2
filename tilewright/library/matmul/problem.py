"""A matrix product: in numbers, by which configs are ranked, and in a graph, of which launches are made.

MatmulProblem        sizes, element types, memory orders, epilogue; operations on arrays make it of these
DequantizedProblem   the same by quantized weights
GraphProduct         the operands of a graph's node, with sizes that may be known only at run time; `at` gives the
                     `MatmulProblem` for a number of rows
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tilewright.dtypes import DType, bfloat16, float32, int4, int32
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Operand, PackedConstant
from tilewright.library.cost import expected
from tilewright.library.epilogue import Epilogue, EpilogueCost
from tilewright.library.generated.index import flatten
from tilewright.library.generated.source import merge_axes
from tilewright.library.generated.trace import align, axes_of
from tilewright.library.packing import panels_recipe
from tilewright.symbolic import Size, lift, product, simplify

_Problem = TypeVar("_Problem", bound="MatmulProblem")


def row_class(rows: int) -> int:
    """The number of rows whose choice serves `rows`: they are rounded up, finely where they decide about waves."""
    for limit in (8, 16, 32, 64):
        if rows <= limit:
            return limit
    step = 64 if rows <= 2048 else 256
    return -(-rows // step) * step


@dataclass(frozen=True)
class MatmulProblem:
    """out[batches, rows, columns] = epilogue(a[batches, rows, depth] @ b[batches, depth, columns]).

    `left_transposed`: elements of a column of `a` lie beside each other; `right_transposed`: those of a row of `b`
    (the fast order is the other one, weights as [columns, depth]).  `operands` are the types of the epilogue's
    operands, as text.  `obstacle` says why the tensor memory accelerator cannot move these arrays, or is empty.
    `weights_ready`: nothing that still runs when this product starts writes `b`.  `aligned`: the epilogue's arrays and
    their rows begin at multiples of 16 bytes.  `at_most`: a config shall serve every number of rows up to it; `rows` is
    the one that it is ranked by.  `singly`: elements of `a`, and of `b`, are copied one by one, since their rows begin
    anywhere.  `one_left`: all batches have one `a`.
    """

    rows: int
    columns: int
    depth: int
    batches: int = 1
    input: DType = bfloat16
    output: DType = bfloat16
    left_transposed: bool = False
    right_transposed: bool = False
    epilogue: Epilogue = Epilogue()
    operands: tuple[str, ...] = ()
    weights_ready: bool = False
    exact: bool = False  # float32 operands are multiplied as float32, not as tf32
    obstacle: str = ""
    aligned: bool = True
    at_most: int = 0
    singly: tuple[bool, bool] = (False, False)
    right: DType | None = None  # the type of `b`, where it is not that of `a`
    one_left: bool = False

    @property
    def cost(self) -> EpilogueCost:
        """What the epilogue takes."""
        return self.epilogue.cost

    @property
    def most_rows(self) -> int:
        """The most rows that there are."""
        return max(self.rows, self.at_most)

    @property
    def by_addition(self) -> bool:
        """Whether it is made of multiply-adds on the ordinary units, none of tensor cores."""
        return self.input.is_float and self.input.bits == 32 and self.exact

    @property
    def flops(self) -> int:
        """Operations of the product, a multiplication and an addition counted as two."""
        return 2 * self.batches * self.rows * self.columns * self.depth

    @property
    def bytes(self) -> int:
        """Bytes of the operands and the result, each counted once."""
        results = self.rows * self.columns // (2 if self.cost.gated else 1)
        return self.input_bytes + self.batches * results * self.output.itemsize

    @property
    def input_bytes(self) -> int:
        """Bytes of the operands."""
        lefts = 1 if self.one_left else self.batches
        return (lefts * self.rows + self.batches * self.columns) * self.depth * self.input.itemsize

    @property
    def shape_class(self: _Problem) -> _Problem:
        """The problem whose choice serves this one: that of its class of rows."""
        return replace(self, rows=row_class(self.rows))

    @property
    def key(self) -> str:
        """The problem in one line."""
        order = ("t" if self.left_transposed else "n") + ("n" if self.right_transposed else "t")
        batches = f"{self.batches}x" if self.batches > 1 else ""
        kinds = self.input.name if self.right is None else f"{self.input.name} by {self.right.name}"
        parts = [
            f"{batches}{self.rows}x{self.columns}x{self.depth} {kinds}->{self.output.name} {order}",
            *([self.epilogue.described] if self.epilogue.described else []),
            *self.operands,
        ]
        marks = {
            "ready": self.weights_ready, "exact": self.exact, "unaligned": not self.aligned, "one left": self.one_left,
        }  # fmt: skip
        return " ".join([*parts, *(mark for mark, there in marks.items() if there)])


@dataclass(frozen=True)
class DequantizedProblem(MatmulProblem):
    """out[rows, columns] = epilogue(x[rows, depth] @ numbers[columns, depth]^T): `group` steps of the depth share a
    scale of type `scale`, and a zero point if there are `zeros`.  `aligned`: the result begins at a multiple of 16
    bytes."""

    group: int = 0
    weights: DType = int4
    scale: DType = float32
    zeros: bool = False

    @property
    def stage_group(self) -> int:
        """Steps that share a scale, as configs have it: 0 for all of the depth."""
        return 0 if self.group == self.depth else self.group

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, scales and zero points."""
        scales = self.depth // self.group * (self.scale.itemsize + self.zeros)
        return self.columns * (self.depth * self.weights.bits // 8 + scales)


def sum_type(dtype: DType) -> DType:
    """The type that `dot` sums products of a type in, where the graph's type is that of the operands or int32."""
    return int32 if dtype.is_integer else dtype


def norm_in_front(group: Group) -> Node | None:
    """The RMS norm that a product of few rows computes of them itself (`graph.passes.fuse_norms`)."""
    assert group.anchor is not None
    rows = group.anchor.inputs[0]
    return next((node for node in group.prologue if node.output is rows and node.op == "rms_norm"), None)


@dataclass(frozen=True)
class GraphProduct:
    """One matrix product in a graph: sizes, where A and B lie (strides in elements), and how batches are walked."""

    rows: Size
    columns: Size
    depth: Size
    a: Value
    b: Operand
    a_row: Size
    a_depth: Size
    b_depth: Size
    b_column: Size
    width: int  # of B's panels; 0 when B is strided
    group: int = 1  # steps of the depth that lie beside each other in B's panels
    batches: Size = 1
    inner_batches: Size = 1
    a_batch: tuple[Size, Size] = (0, 0)  # strides of the outer and the inner batch dimension
    b_batch: tuple[Size, Size] = (0, 0)
    pairs_fit: bool = False  # of integers: sums of two neighbouring products are numbers of 16 bits

    @property
    def b_type(self) -> DType:
        """The element type of B."""
        assert isinstance(self.b, (Value, PackedConstant))
        return self.b.dtype if isinstance(self.b, Value) else self.b.value.dtype

    @property
    def left_transposed(self) -> bool:
        """Whether A is [depth, rows]."""
        return self.a_depth != 1

    @property
    def right_transposed(self) -> bool:
        """Whether B is [depth, columns]."""
        return self.b_column == 1

    @property
    def one_left(self) -> bool:
        """Whether all batches have one A."""
        return self.batches != 1 and self.a_batch == (0, 0)

    def at(self, rows: int, **facts: Any) -> MatmulProblem:
        """The product in numbers for so many rows, with other sizes as expected; `facts` are further fields."""
        sizes = {"columns": self.columns, "depth": self.depth, "batches": self.batches}
        given: dict[str, Any] = {name: expected(size) for name, size in sizes.items()} | facts
        given |= {"left_transposed": self.left_transposed, "right_transposed": self.right_transposed}
        given["one_left"] = self.one_left
        return MatmulProblem(rows, input=self.a.dtype, **given)


def as_sum_of_products(group: Group) -> Group:
    """An integer product as a reduction: the sum over the depth of a[..., M, 1, K] * b[..., 1, N, K]."""
    anchor = group.anchor
    assert anchor is not None
    a, b = anchor.inputs
    assert a is not None and b is not None
    nodes: list[Node] = []

    def step(op: str, inputs: list[Value | None], result_shape: tuple[Size, ...], **attributes: Any) -> Value:
        result = Value(f"{anchor.output.name}.step{len(nodes)}", anchor.output.dtype, result_shape)
        nodes.append(Node(op, inputs, [result], attributes, anchor.source))
        return result

    def turned(operand: Value) -> Value:
        order = (*range(operand.rank - 2), operand.rank - 1, operand.rank - 2)
        return step("permute", [operand], tuple(operand.shape[axis] for axis in order), order=order)

    if anchor.attributes["transpose_a"]:
        a = turned(a)
    if not anchor.attributes["transpose_b"]:
        b = turned(b)
    left_shape, right_shape = (*a.shape[:-1], 1, a.shape[-1]), (*b.shape[:-2], 1, *b.shape[-2:])
    left = step("reshape", [a], left_shape, shape=left_shape)
    right = step("reshape", [b], right_shape, shape=right_shape)
    products = step("multiply", [left, right], (*anchor.output.shape, a.shape[-1]))
    attributes = {"axes": (anchor.output.rank,), "keepdims": False}
    total = Node("reduce_sum", [products], [anchor.output], attributes, anchor.source)
    return Group("reduction", [*group.prologue, *nodes, total, *group.epilogue], group.inputs, group.outputs, total,
                 group.name)  # fmt: skip


def describe(node: Node, graph: Graph, width: int, group: int = 1) -> GraphProduct:
    """The problem that a matmul node poses.

    Constants are packed in panels of `width` columns (0: not at all), with `group` steps of the depth beside
    each other.
    """
    a, b = node.inputs
    assert a is not None and b is not None
    transposed = node.attributes["transpose_b"]
    height, depth = node.output.shape[-2], a.shape[-2 if node.attributes["transpose_a"] else -1]
    columns = b.shape[-2] if transposed else b.shape[-1]
    a_row, a_depth = (1, height) if node.attributes["transpose_a"] else (depth, 1)
    b_depth, b_column = (1, depth) if transposed else (columns, 1)
    if all(extent == 1 for extent in b.shape[:-2]):
        rows = product((*a.shape[:-2], height))
        if width and b in graph.constants and b.rank == 2:
            packed = PackedConstant(b, panels_recipe(width, transposed, group))
            return GraphProduct(rows, columns, depth, a, packed, a_row, a_depth, 0, 0, width, group)
        return GraphProduct(rows, columns, depth, a, b, a_row, a_depth, b_depth, b_column, 0)
    batch = node.output.shape[:-2]
    coordinates = axes_of(batch)
    indices = [flatten(align(coordinates, x.shape[:-2]), x.shape[:-2]) for x in (a, b)]
    indices.append(flatten(coordinates, batch))
    variables = merge_axes(batch, indices)
    if len(variables) > 2:
        raise UnsupportedOperationError(
            f"matmul of {a!r} and {b!r}: batch dimensions are broadcast in an alternating pattern; "
            "expand one operand (torch.Tensor.expand(...).contiguous()) before the product"
        )
    steps = {0: product(a.shape[-2:]), 1: product(b.shape[-2:])}
    strides = [
        tuple(simplify(lift(index.coefficient(v.axes[-1])) * steps[which]) for v in variables)
        for which, index in enumerate(indices[:2])
    ]
    a_batch, b_batch = ((*([0] * (2 - len(item))), *item) for item in strides)
    inner = variables[-1].extent if variables else 1
    return GraphProduct(
        height, columns, depth, a, b, a_row, a_depth, b_depth, b_column, 0, 1, product(batch), inner,
        (a_batch[0], a_batch[1]), (b_batch[0], b_batch[1]),
    )  # fmt: skip
