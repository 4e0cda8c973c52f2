"""The matrix product problem without its data: sizes, element types, memory orders, epilogue.

Operations on arrays, kernels of GPU engines, and the models that rank configs describe a product by this; kernels of
CPU engines by `library.matmul.cpu.Problem`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.dtypes import DType, bfloat16
from tilewright.library.epilogue import Epilogue, EpilogueCost


@dataclass(frozen=True)
class MatmulProblem:
    """out[batches, rows, columns] = epilogue(a[batches, rows, depth] @ b[batches, depth, columns]).

    `left_transposed`: elements of a column of `a` lie beside each other; `right_transposed`: those of a row of `b`
    (the fast order is the other one, weights as [columns, depth]).  `operands` are the types of the epilogue's
    operands, as text.  `obstacle` says why the tensor memory accelerator cannot move these arrays, or is empty.
    `weights_ready`: nothing that still runs when this product starts writes `b`.  `aligned`: the epilogue's arrays and
    their rows begin at multiples of 16 bytes.  `at_most`: a config shall serve every number of rows up to it; `rows` is
    the one that it is ranked by.  `singly`: elements of `a`, and of `b`, are copied one by one, since their rows begin
    anywhere.  `generated` is what an epilogue made from a graph's expressions costs; then
    `epilogue` is not asked.
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
    generated: EpilogueCost | None = None

    @property
    def cost(self) -> EpilogueCost:
        """What the epilogue takes."""
        return self.generated if self.generated is not None else self.epilogue.cost

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
        results = self.rows * self.columns // (2 if self.epilogue.gate else 1)
        inputs = (self.rows + self.columns) * self.depth
        return self.batches * (inputs * self.input.itemsize + results * self.output.itemsize)

    @property
    def shape_class(self) -> MatmulProblem:
        """The problem whose choice serves this one: rows are rounded up, finely where they decide about waves."""
        for limit in (8, 16, 32, 64):
            if self.rows <= limit:
                return replace(self, rows=limit)
        step = 64 if self.rows <= 2048 else 256
        return replace(self, rows=-(-self.rows // step) * step)

    @property
    def key(self) -> str:
        """The problem in one line."""
        order = ("t" if self.left_transposed else "n") + ("n" if self.right_transposed else "t")
        batches = f"{self.batches}x" if self.batches > 1 else ""
        parts = [
            f"{batches}{self.rows}x{self.columns}x{self.depth} {self.input.name}->{self.output.name} {order}",
            *(f"{name}={value}" for name, value in vars(self.epilogue).items() if value),
            *self.operands,
        ]
        marks = {"ready": self.weights_ready, "exact": self.exact, "unaligned": not self.aligned}
        return " ".join([*parts, *(mark for mark, there in marks.items() if there)])
