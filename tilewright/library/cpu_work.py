"""How much work one program instance of a CPU has."""

from __future__ import annotations

from tilewright.symbolic import Size

COLUMN_CHUNK = 1024
ROW_WORK = 16384  # elements that one program should have at least


def rows_per_program(rows: Size, columns: Size) -> int:
    """Rows of one program: enough work to be worth starting, and an even number of programs."""
    width = columns if isinstance(columns, int) else COLUMN_CHUNK
    count = max(1, ROW_WORK // max(1, width))
    if not isinstance(rows, int):
        return min(count, 16)
    programs = 2 * -(-rows // (2 * count))
    return max(1, -(-rows // programs))
