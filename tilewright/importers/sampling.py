"""Sampling of images at places that a tensor gives; shared by the importers."""

from __future__ import annotations

from tilewright.dtypes import float32, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import Size, product


def grid_sample(emit: Emitter, x: Value, grid: Value, mode: str, padding: str, align_corners: bool) -> Value:
    """Images [N, C, H, W] at places [N, rows, columns, 2] (x, y from -1 to 1): [N, C, rows, columns].

    `mode`: linear or nearest. `padding`, for places outside: zeros, border (the nearest pixel) or reflection.
    """
    if x.rank != 4 or grid.rank != 4:
        raise Unsupported("sampling of volumes", "sample images of two dimensions")
    if mode not in ("linear", "nearest"):
        raise Unsupported(f"sampling in mode {mode!r}", "use linear or nearest")
    batch, channels, height, width = x.shape
    wide = max(x.dtype, grid.dtype, key=lambda dtype: dtype.bits if dtype.is_float else 0)
    dtype = float32 if wide.bits < 32 else wide
    grid = emit.cast(grid, dtype)
    across = _places(emit, emit.select(grid, 3, 0), width, padding, align_corners)
    down = _places(emit, emit.select(grid, 3, 1), height, padding, align_corners)
    pixels = emit.reshape(x, (batch, channels, product((height, width))))
    corners: list[tuple[Value, Value, Value | None]] = (
        _corners(emit, down, across) if mode == "linear" else [(emit.op("round", down), emit.op("round", across), None)]
    )
    total: Value | None = None
    for row, column, weight in corners:
        found = _pixels(emit, pixels, (row, height), (column, width))
        if weight is None and padding == "zeros":
            weight = emit.op("full", shape=row.shape, value=1.0, dtype=dtype)
        if weight is not None:
            if padding == "zeros":
                inside = emit.op("logical_and", _inside(emit, row, height), _inside(emit, column, width))
                weight = emit.op("where", inside, weight, emit.builder.number(0.0, dtype))
            flat = emit.reshape(weight, (batch, 1, product(row.shape[1:])))
            found = emit.op("multiply", emit.cast(found, dtype), flat)
        total = found if total is None else emit.op("add", total, found)
    assert total is not None
    return emit.reshape(emit.cast(total, x.dtype), (batch, channels, *grid.shape[1:3]))


def _places(emit: Emitter, place: Value, extent: Size, padding: str, align_corners: bool) -> Value:
    """Places in pixels: -1 and 1 are the centres of the outer pixels (`align_corners`) or their outer edges."""
    size = emit.value(extent, place.dtype)
    last = emit.op("subtract", size, 1.0)
    place = emit.op("add", place, 1.0)
    if align_corners:
        place = emit.op("multiply", place, emit.op("multiply", last, 0.5))
    else:
        place = emit.op("multiply", emit.op("subtract", emit.op("multiply", place, size), 1.0), 0.5)
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, span = (0.0, emit.op("maximum", last, 1.0)) if align_corners else (-0.5, size)
        distance = emit.op("absolute", emit.op("subtract", place, low))
        turns = emit.op("floor", emit.op("divide", distance, span))
        rest = emit.op("subtract", distance, emit.op("multiply", turns, span))
        odd = emit.op("equal", emit.op("remainder", turns, 2.0), 1.0)
        place = emit.op("add", emit.op("where", odd, emit.op("subtract", span, rest), rest), low)
    elif padding != "border":
        raise Unsupported(f"sampling with padding {padding!r}", "use zeros, border or reflection")
    return emit.op("minimum", emit.op("maximum", place, 0.0), last)


def _corners(emit: Emitter, down: Value, across: Value) -> list[tuple[Value, Value, Value | None]]:
    """Row, column and weight of the four pixels around each place."""
    sides = []
    for place in (down, across):
        first = emit.op("floor", place)
        far = emit.op("subtract", place, first)
        sides.append([(first, emit.op("subtract", 1.0, far)), (emit.op("add", first, 1.0), far)])
    rows, columns = sides
    return [(row, column, emit.op("multiply", a, b)) for row, a in rows for column, b in columns]


def _inside(emit: Emitter, position: Value, extent: Size) -> Value:
    last = emit.value(extent, position.dtype)
    return emit.op("logical_and", emit.op("greater_equal", position, 0.0), emit.op("less", position, last))


def _pixels(emit: Emitter, pixels: Value, row: tuple[Value, Size], column: tuple[Value, Size]) -> Value:
    """Pixels [N, C, H * W] at positions [N, rows, columns], or at the nearest that exist: [N, C, count]."""
    places = []
    for position, extent in (row, column):
        last = emit.op("subtract", emit.value(extent, position.dtype), 1.0)
        places.append(emit.cast(emit.op("minimum", emit.op("maximum", position, 0.0), last), int64))
    flat = emit.op("add", emit.op("multiply", places[0], emit.value(column[1], int64)), places[1])
    batch, channels = pixels.shape[:2]
    count = product(flat.shape[1:])
    flat = emit.broadcast(emit.reshape(flat, (batch, 1, count)), (batch, channels, count))
    return emit.op("gather_elements", pixels, flat, axis=2)
