"""The attention problem without its data: sizes, masks, outputs; for operations on arrays and for engines."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bfloat16
from tilewright.symbolic import Size, evaluate, free_symbols

SMALLEST = 16  # rows, columns and depth of an instruction
TYPICAL = 512  # queries and keys that a run-time number is taken for


@dataclass(frozen=True)
class AttentionProblem:
    """softmax(scale q k^T + bias) v; queries and keys may be typical numbers of a range.

    A `window` is how many keys a query sees, 0 for all; `ragged`: each batch has queries and keys of its own;
    `counted`: it has keys of its own; `softcap` bounds scores (0: not); with `statistics` the logarithms of the sums
    are results, too.  `obstacle` says why the tensor memory accelerator cannot move these arrays, or is empty.
    `bias`: 1 a number for each key, 2 for each query and key.
    """

    batches: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int  # of a head
    dtype: DType = bfloat16
    causal: bool = False
    window: int = 0
    ragged: bool = False
    statistics: bool = False
    obstacle: str = ""
    bias: int = 0
    counted: bool = False
    softcap: float = 0.0
    output: DType | None = None  # 8 bits in which results are stored; None: the type of the operands


def typical(size: Size, most: int = TYPICAL) -> int:
    """A size that is known, or a typical one of its range."""
    symbols = {symbol.name: min(max(TYPICAL, symbol.low), symbol.high) for symbol in free_symbols(size)}
    return evaluate(size, symbols) if isinstance(size, int) else min(evaluate(size, symbols), most)
