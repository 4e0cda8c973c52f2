"""What a matrix product is, apart from the data: sizes, element types, orders in memory, what comes behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.dtypes import DType
from tilewright.library.epilogue import Epilogue


@dataclass(frozen=True)
class MatmulProblem:
    """out[batches, rows, columns] = epilogue(a[batches, rows, depth] @ b[batches, depth, columns]).

    `left_transposed`: elements of a column of `a` lie beside each other; `right_transposed`: those of a row of `b`
    (the fast order is the other one, weights as [columns, depth]).  `operands` are the types of the epilogue's
    operands, as text.  `obstacle` says why the tensor memory accelerator cannot move these arrays, or is empty.
    `weights_ready`: nothing that still runs when this product starts writes `b`.  `aligned`: the epilogue's arrays and
    their rows begin at multiples of 16 bytes.
    """

    rows: int
    columns: int
    depth: int
    batches: int
    input: DType
    output: DType
    left_transposed: bool = False
    right_transposed: bool = False
    epilogue: Epilogue = Epilogue()
    operands: tuple[str, ...] = ()
    weights_ready: bool = False
    exact: bool = False  # float32 operands are multiplied as float32, not as tf32
    obstacle: str = ""
    aligned: bool = True

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
