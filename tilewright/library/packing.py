"""Packs constants in the order in which a kernel reads them: recipes as data, and their inverse.

A recipe is a tuple of (key, value) pairs; `kind` says which:

    panels   ("width", W), ("transposed", bool), and ("group", G) where G > 1 divides the depth
             a matrix [depth, columns] (or [columns, depth] when transposed) as [columns/W][depth][W]:
             columns are cut into panels of W, the last one filled with zeros;
             with a group as [columns/W][depth/G][W][G]: G steps of the depth are neighbours;
             and with ("halves", H) of a matrix whose columns are in the order of `halves`, H of either half
    nibbles  ("width", W), ("block", B), ("dtype", name)
             a matrix [columns, depth] of 4-bit numbers as bytes [columns/W][depth/B][B/2][W]: of each B steps of the
             depth the first half is in the low bits, the second in the high ones; int4 is stored 8 more, as uint4
    words    ("width", W), ("dtype", name)
             a matrix [columns, depth] of 4-bit numbers as uint32 [columns/W][depth/8][W]: eight steps of the depth, the
             first in the lowest bits; int4 is stored 8 more, as uint4
    fragments ("dtype", name)
             a matrix [columns, depth] of 4 or 8 bits as [columns/64][depth/S L][256], filled up with zeros, as the left
             operand of a warpgroup's product: of each 64 columns and S steps of the depth (64 of 4 bits, else 32) 16
             bytes for each thread, in L lines. Integers are in int32, low bits first, signed ones stored 8 or 128 more;
             ("halves", H) as for panels
    bytes    ("dtype", name)
             numbers of less than 8 bits, each as a byte: what kernels see of them
    dense    ("dtype", name)
             the same packed in one line of bytes, the first in the low bits
    taps     ("width", W), ("groups", G), and ("group", B) where B > 1 divides the depth
             convolution weights [O, I/G, *kernel] as a matrix [kernel * I/G, O/G] in panels, for each
             of the G groups: the depth runs over kernel positions first, then input channels, B of it adjacent
             and with ("depth", D) filled with zeros up to the depth D
    winograd ("width", W), ("groups", G)
             3x3 convolution weights [O, I/G, 3, 3] as 16 matrices [I/G, O/G] in panels, for each of the G groups: the
             taps transformed for Winograd's algorithm.  Rounded, so they do not give back the very same taps
    order    ("axes", (…))
             dimensions permuted, dense
    halves   ("width", W), ("transposed", bool)
             a matrix [depth, 2n] (or [2n, depth] when transposed) of the same shape: columns 2W i + j are
             columns W i + j of the left half, columns 2W i + W + j are columns W i + j of the right half
    runs     ("channels", C), ("fold", F), ("length", L), and ("pixels", P), ("step", S) where P > 1
             convolution weights [O, I, rows, columns] as [O][rows / F][L]: of F lines together the taps one after
             the other, [columns][F][C] with zeros for the channels beyond I and lines beyond the last, then zeros;
             for P neighbouring results [P][O][rows / F][L], each S columns further on in its run
    gates    ("width", W), ("gates", G)
             weights of recurrent layers [directions, depth, G N] as [directions][N / W][G][depth][W]: the panels of a
             run of units stand together, the last run filled with zeros
             and with ("group", B) where B > 1 divides the depth as [directions][N / W][G][depth / B][W][B]
    gate_sums ("width", W), ("gates", G)
             the sums over the depth of such integers, as int32 [directions][N / W][G][W].  They do not tell the weights
    lines    ("length", L)
             the last dimension filled with zeros up to L elements
    windows  ("channels", C), ("taps", T), ("length", L)
             convolution weights [O, I, *kernel] as a matrix [O, kernel / T * L]: of each T taps one after the other the
             channels, C of each, with zeros for those beyond I, then zeros
    parts    ("rows", R), ("columns", C), ("line", L)
             float32 matrices of R x C as bfloat16 [matrices, 3, R, L]: three numbers whose sum is each of them,
             and zeros.  Parts below 2^-133 are rounded: they do not give back the very same numbers (`gives_back`)
             and with ("of", recipe) the matrix that another recipe makes
    diagonal ("count", N)
             convolution weights [O, I, 1, …] as a matrix [N O, N I]: N times along the diagonal, zeros elsewhere
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NAME, NARROW, DType, bfloat16, int4
from tilewright.library import bfloat16_parts

_PAIRS = {4: (1.0,), 6: (0.5, 2.0), 8: (1.0, 0.5, 2.0)}  # points of Winograd's F(m, r), without 0 and infinity
_ROWS = 256  # of a matrix that are turned at a time
Recipe = tuple[tuple[str, Any], ...]


def panels_recipe(width: int, transposed: bool, group: int = 1, halves: int = 0) -> Recipe:
    """The recipe of a matrix in column panels; `group` steps of its depth are neighbours, and so are `halves` columns
    of either half."""
    recipe: Recipe = (("kind", "panels"), ("width", width), ("transposed", transposed))
    recipe = recipe if group == 1 else (*recipe, ("group", group))
    return (*recipe, ("halves", halves)) if halves else recipe


def nibbles_recipe(width: int, block: int, dtype: DType) -> Recipe:
    """The recipe of a matrix [columns, depth] of 4-bit numbers, two to a byte."""
    return (("kind", "nibbles"), ("width", width), ("block", block), ("dtype", dtype.name))


def words_recipe(width: int, dtype: DType) -> Recipe:
    """The recipe of a matrix [columns, depth] of 4-bit numbers, eight to a word."""
    return (("kind", "words"), ("width", width), ("dtype", dtype.name))


def fragments_recipe(dtype: DType, halves: int = 0) -> Recipe:
    """The recipe of a matrix [columns, depth] of 4 or 8 bits as the left operand of Hopper's products; `halves` columns
    of either half are neighbours."""
    recipe: Recipe = (("kind", "fragments"), ("dtype", dtype.name))
    return (*recipe, ("halves", halves)) if halves else recipe


def bytes_recipe(dtype: DType) -> Recipe | None:
    """The recipe of a constant in its own order: numbers of less than 8 bits are bytes, as kernels see them."""
    if dtype.bits == 8 or dtype not in NARROW:
        return None
    return (("kind", "bytes"), ("dtype", dtype.name))


def dense_recipe(dtype: DType) -> Recipe | None:
    """The recipe of a constant that no kernel reads: numbers of less than 8 bits in as few bytes as they take."""
    if dtype.bits == 8 or dtype not in NARROW:
        return None
    return (("kind", "dense"), ("dtype", dtype.name))


def taps_recipe(width: int, groups: int = 1, group: int = 1, depth: int = 0) -> Recipe:
    """The recipe of convolution weights in column panels; `group` steps of their depth are adjacent.  A `depth` is one
    that they are filled up to with zeros."""
    recipe: Recipe = (("kind", "taps"), ("width", width), ("groups", groups))
    recipe = recipe if group == 1 else (*recipe, ("group", group))
    return (*recipe, ("depth", depth)) if depth else recipe


def winograd_recipe(width: int, groups: int = 1) -> Recipe:
    """The recipe of 3x3 convolution weights transformed for F(2x2, 3x3), in column panels."""
    return (("kind", "winograd"), ("width", width), ("groups", groups))


def filters_recipe(points_y: int, points_x: int) -> Recipe:
    """The recipe of convolution weights at so many points of Winograd's F(m, r), m = points - r + 1."""
    return (("kind", "filters"), ("points", (points_y, points_x)))


def is_exact(recipe: Recipe) -> bool:
    """Whether `invert` gives back the very same constant."""
    return dict(recipe)["kind"] not in ("winograd", "filters", "gate_sums")


def gives_back(recipe: Recipe, array: np.ndarray) -> bool:
    """Whether `invert` gives back this very constant from its packed form."""
    return bfloat16_parts.are_exact(array) if dict(recipe)["kind"] == "parts" else is_exact(recipe)


def order_recipe(axes: Sequence[int]) -> Recipe:
    """The recipe of permuted dimensions."""
    return (("kind", "order"), ("axes", tuple(axes)))


def halves_recipe(width: int, transposed: bool) -> Recipe:
    """The recipe of a matrix whose columns are two halves, in alternating groups of `width` columns of each."""
    return (("kind", "halves"), ("width", width), ("transposed", transposed))


def runs_recipe(channels: int, fold: int, length: int, pixels: int = 1, step: int = 0) -> Recipe:
    """The recipe of convolution weights in lines of the window, `fold` of them together; for `pixels` results at
    once, whose windows begin `step` columns apart."""
    recipe: Recipe = (("kind", "runs"), ("channels", channels), ("fold", fold), ("length", length))
    return recipe if pixels == 1 else (*recipe, ("pixels", pixels), ("step", step))


def gates_recipe(width: int, gates: int, group: int = 1) -> Recipe:
    """The recipe of a recurrent layer's weights in panels, those of all gates of some units together; `group` steps of
    the depth are contiguous."""
    recipe: Recipe = (("kind", "gates"), ("width", width), ("gates", gates))
    return recipe if group == 1 else (*recipe, ("group", group))


def gate_sums_recipe(width: int, gates: int) -> Recipe:
    """The recipe of the sums of the columns of a recurrent layer's integers."""
    return (("kind", "gate_sums"), ("width", width), ("gates", gates))


def lines_recipe(length: int) -> Recipe:
    """The recipe of a tensor whose lines begin `length` elements apart."""
    return (("kind", "lines"), ("length", length))


def windows_recipe(channels: int, taps: int, length: int) -> Recipe:
    """The recipe of convolution weights as a matrix, of each filter runs of `length` for so many taps of `channels`."""
    return (("kind", "windows"), ("channels", channels), ("taps", taps), ("length", length))


def parts_recipe(rows: int, columns: int, line: int, of: Recipe = ()) -> Recipe:
    """The recipe of float32 matrices as three planes of bfloat16, whose rows begin `line` elements apart; of a matrix
    that another recipe makes, if there is one."""
    recipe: Recipe = (("kind", "parts"), ("rows", rows), ("columns", columns), ("line", line))
    return (*recipe, ("of", of)) if of else recipe


def diagonal_recipe(count: int) -> Recipe:
    """The recipe of a matrix that stands `count` times along the diagonal of a larger one."""
    return (("kind", "diagonal"), ("count", count))


def packed_dtype(recipe: Recipe, dtype: np.dtype) -> np.dtype:
    """The element type of the packed array."""
    fields = dict(recipe)
    if fields["kind"] == "fragments":
        return np.dtype(np.int32) if BY_NAME[fields["dtype"]].is_integer else dtype
    if fields["kind"] == "gate_sums":
        return np.dtype(np.int32)
    if fields["kind"] == "parts":
        return bfloat16.numpy
    if fields["kind"] == "words":
        return np.dtype(np.uint32)
    return np.dtype(np.uint8) if fields["kind"] in ("nibbles", "bytes", "dense") else dtype


def packed_shape(recipe: Recipe, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the packed array."""
    fields = dict(recipe)
    if fields["kind"] == "panels":
        columns, depth = (shape[0], shape[1]) if fields["transposed"] else (shape[1], shape[0])
        return _panel_shape(depth, columns, fields["width"], fields.get("group", 1))
    if fields["kind"] == "bytes":
        return tuple(shape)
    if fields["kind"] == "dense":
        return (BY_NAME[fields["dtype"]].packed_bytes(int(np.prod(shape, dtype=np.int64))),)
    if fields["kind"] == "nibbles":
        block = fields["block"]
        return (-(-shape[0] // fields["width"]), shape[1] // block, block // 2, fields["width"])
    if fields["kind"] == "words":
        return (-(-shape[0] // fields["width"]), shape[1] // 8, fields["width"])
    if fields["kind"] == "fragments":
        step, lines = _fragment(BY_NAME[fields["dtype"]])
        return (-(-shape[0] // 64), -(-shape[1] // step) * lines, 256)
    if fields["kind"] == "taps":
        groups = fields["groups"]
        columns, depth = shape[0] // groups, fields.get("depth") or int(np.prod(shape[1:]))
        return (groups, *_panel_shape(depth, columns, fields["width"], fields.get("group", 1)))
    if fields["kind"] == "winograd":
        groups, width = fields["groups"], fields["width"]
        return (groups, 16, -(-(shape[0] // groups) // width), shape[1], width)
    if fields["kind"] == "filters":
        points_y, points_x = fields["points"]
        return (points_y * points_x, shape[1], shape[0])
    if fields["kind"] == "order":
        return tuple(shape[axis] for axis in fields["axes"])
    if fields["kind"] == "halves":
        return tuple(shape)
    if fields["kind"] == "runs":
        return (fields.get("pixels", 1) * shape[0], -(-shape[2] // fields["fold"]), fields["length"])
    if fields["kind"] in ("gates", "gate_sums"):
        units, group = -(-(shape[2] // fields["gates"]) // fields["width"]), fields.get("group", 1)
        outer = (shape[0], units, fields["gates"])
        if fields["kind"] == "gate_sums":
            return (*outer, fields["width"])
        return (*outer, shape[1] // group, fields["width"], *((group,) if group > 1 else ()))
    if fields["kind"] == "lines":
        return (*shape[:-1], fields["length"])
    if fields["kind"] == "windows":
        return (shape[0], int(np.prod(shape[2:])) // fields["taps"] * fields["length"])
    if fields["kind"] == "parts":
        shape = packed_shape(fields["of"], shape) if "of" in fields else shape
        matrices = int(np.prod(shape)) // (fields["rows"] * fields["columns"])
        return (matrices, 3, fields["rows"], fields["line"])
    if fields["kind"] == "diagonal":
        return (fields["count"] * shape[0], fields["count"] * shape[1])
    raise ValueError(f"unknown packing recipe {recipe!r}")


def apply(recipe: Recipe, array: np.ndarray) -> np.ndarray:
    """The packed form of a constant, C-contiguous."""
    fields = dict(recipe)
    if fields.get("halves"):  # of matrices in panels or fragments
        array = _regrouped(array, _columns_axis(fields), (2, -1, fields["halves"]))
    if fields["kind"] == "panels":
        panels = _to_panels(array.T if fields["transposed"] else array, fields["width"])
        return _group_depth(panels, fields.get("group", 1))
    if fields["kind"] == "bytes":
        return np.ascontiguousarray(array).view(np.uint8)
    if fields["kind"] == "dense":
        return packed(array, BY_NAME[fields["dtype"]].bits)
    if fields["kind"] == "nibbles":
        return _to_nibbles(array, fields["width"], fields["block"])
    if fields["kind"] == "words":
        return _to_words(array, fields["width"])
    if fields["kind"] == "fragments":
        return _to_fragments(array, BY_NAME[fields["dtype"]])
    if fields["kind"] == "taps":
        groups = fields["groups"]
        matrices = _tap_matrices(array, groups)
        group, more = fields.get("group", 1), fields.get("depth", matrices.shape[1]) - matrices.shape[1]
        matrices = np.pad(matrices, ((0, 0), (0, more), (0, 0))) if more else matrices
        return np.stack([_group_depth(_to_panels(matrix, fields["width"]), group) for matrix in matrices])
    if fields["kind"] == "winograd":
        return _winograd_taps(array, fields["groups"], fields["width"])
    if fields["kind"] == "filters":
        return _filters(array, *fields["points"])
    if fields["kind"] == "order":
        return _turned(array) if fields["axes"] == (1, 0) else np.ascontiguousarray(array.transpose(fields["axes"]))
    if fields["kind"] == "halves":
        return _regrouped(array, 0 if fields["transposed"] else 1, (2, -1, fields["width"]))
    if fields["kind"] == "runs":
        return _runs(array, fields)
    if fields["kind"] == "gates":
        return _group_depth(_to_gates(array, fields), fields.get("group", 1))
    if fields["kind"] == "gate_sums":
        return _to_gates(array.sum(axis=1, keepdims=True, dtype=np.int32), fields)[..., 0, :].copy()
    if fields["kind"] == "lines":
        lines = np.zeros((*array.shape[:-1], fields["length"]), array.dtype)
        lines[..., : array.shape[-1]] = array
        return lines
    if fields["kind"] == "windows":
        return _to_windows(array, fields)
    if fields["kind"] == "parts":
        planes = np.zeros(packed_shape(recipe, array.shape), bfloat16.numpy)
        array = apply(fields["of"], array) if "of" in fields else array
        matrices = array.reshape(-1, fields["rows"], fields["columns"])
        bfloat16_parts.split(matrices, planes)
        return planes
    if fields["kind"] == "diagonal":
        matrix = array.reshape(array.shape[:2])
        return np.kron(np.eye(fields["count"], dtype=array.dtype), matrix)
    raise ValueError(f"unknown packing recipe {recipe!r}")


def _to_gates(array: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
    """[directions, depth, gates * units] as [directions][panels][gates][depth][width]."""
    parts = np.split(array, fields["gates"], axis=2)
    sides = [np.stack([_to_panels(part[side], fields["width"]) for part in parts], 1) for side in range(len(array))]
    return np.ascontiguousarray(np.stack(sides))


def _runs(array: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
    """Convolution weights in lines of the window."""
    outputs, channels, rows, columns = array.shape
    fold, pixel = fields["fold"], fields["fold"] * fields["channels"]
    lines = np.zeros((outputs, -(-rows // fold) * fold, columns, fields["channels"]), array.dtype)
    lines[:, :rows, :, :channels] = array.transpose(0, 2, 3, 1)
    together = lines.reshape(outputs, -1, fold, columns, fields["channels"]).swapaxes(2, 3)
    runs = np.zeros((fields.get("pixels", 1), outputs, together.shape[1], fields["length"]), array.dtype)
    for number, one in enumerate(runs):
        begin = number * fields.get("step", 0) * pixel
        one[..., begin : begin + columns * pixel] = together.reshape(outputs, -1, columns * pixel)
    return runs.reshape(-1, *runs.shape[2:])


def invert(recipe: Recipe, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The constant of `shape` whose packed form is `array`, C-contiguous.

    Raises `ValueError` when `array` does not have the packed shape, or never tells the constant exactly.
    """
    fields = dict(recipe)
    if not is_exact(recipe):
        raise ValueError(f"the recipe {recipe!r} rounds: it cannot be undone")
    shape = tuple(shape)
    if array.shape != packed_shape(recipe, shape):
        raise ValueError(f"packed array has shape {array.shape}, expected {packed_shape(recipe, shape)}")
    inverted = _inverted(fields, array, shape)
    if fields.get("halves"):
        return _regrouped(inverted, _columns_axis(fields), (-1, 2, fields["halves"]))
    return inverted


def _inverted(fields: dict[str, Any], array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The constant, with its columns in the order of the packed ones."""
    if fields["kind"] == "panels":
        columns = shape[0] if fields["transposed"] else shape[1]
        panels = _ungroup_depth(array, fields.get("group", 1), fields["width"])
        matrix = _from_panels(panels, columns)
        return np.ascontiguousarray(matrix.T if fields["transposed"] else matrix)
    if fields["kind"] == "bytes":
        return array.view(BY_NAME[fields["dtype"]].numpy)
    if fields["kind"] == "dense":
        return unpacked(array, shape, BY_NAME[fields["dtype"]])
    if fields["kind"] == "nibbles":
        return _from_nibbles(array, shape[0], BY_NAME[fields["dtype"]])
    if fields["kind"] == "words":
        return _from_words(array, shape[0], BY_NAME[fields["dtype"]])
    if fields["kind"] == "fragments":
        return _from_fragments(array, shape, BY_NAME[fields["dtype"]])
    if fields["kind"] == "taps":
        groups, kernel = fields["groups"], shape[2:]
        array = np.stack([_ungroup_depth(part, fields.get("group", 1), fields["width"]) for part in array])
        depth = int(np.prod(shape[1:]))
        matrices = np.stack([_from_panels(part, shape[0] // groups)[:depth] for part in array])
        taps = matrices.reshape(groups, *kernel, shape[1], shape[0] // groups)
        rank = len(kernel)
        ordered = taps.transpose(0, rank + 2, rank + 1, *range(1, rank + 1))
        return np.ascontiguousarray(ordered.reshape(shape))
    if fields["kind"] == "halves":
        return _regrouped(array, 0 if fields["transposed"] else 1, (-1, 2, fields["width"]))
    if fields["kind"] == "runs":
        fold, channels = fields["fold"], fields["channels"]
        together = array[: shape[0], :, : shape[3] * fold * channels].reshape(shape[0], -1, shape[3], fold, channels)
        lines = together.swapaxes(2, 3).reshape(shape[0], -1, shape[3], channels)
        return np.ascontiguousarray(lines[:, : shape[2], :, : shape[1]].transpose(0, 3, 1, 2))
    if fields["kind"] == "gates":
        units, numbers = shape[2] // fields["gates"], range(fields["gates"])
        array = _ungroup_depth(array, fields.get("group", 1), fields["width"])
        whole = [np.concatenate([_from_panels(side[:, gate], units) for gate in numbers], axis=1) for side in array]
        return np.ascontiguousarray(np.stack(whole))
    if fields["kind"] == "lines":
        return np.ascontiguousarray(array[..., : shape[-1]])
    if fields["kind"] == "parts":
        matrices = bfloat16_parts.joined(array, fields["columns"])
        if "of" in fields:
            return invert(fields["of"], matrices.reshape(packed_shape(fields["of"], shape)), shape)
        return matrices.reshape(shape)
    if fields["kind"] == "windows":
        return _from_windows(array, fields, shape)
    if fields["kind"] == "diagonal":
        return np.ascontiguousarray(array[: shape[0], : shape[1]]).reshape(shape)
    return np.ascontiguousarray(array.transpose(np.argsort(fields["axes"])))


def _to_windows(array: np.ndarray, fields: dict[str, Any]) -> np.ndarray:
    """Convolution weights as a matrix of runs of taps."""
    more = [(0, 0)] * (array.ndim - 1) + [(0, fields["channels"] - array.shape[1])]
    run = fields["taps"] * fields["channels"]
    runs = np.pad(np.moveaxis(array, 1, -1), more).reshape(array.shape[0], -1, run)
    return np.pad(runs, ((0, 0), (0, 0), (0, fields["length"] - run))).reshape(array.shape[0], -1)


def _from_windows(array: np.ndarray, fields: dict[str, Any], shape: Sequence[int]) -> np.ndarray:
    """The weights of `shape` again."""
    runs = array.reshape(shape[0], -1, fields["length"])[..., : fields["taps"] * fields["channels"]]
    filters = runs.reshape(shape[0], *shape[2:], fields["channels"])[..., : shape[1]]
    return np.ascontiguousarray(np.moveaxis(filters, -1, 1))


def packed(array: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of 4 or 2 bits, in the low bits of bytes, in one line of bytes: the first in the low bits."""
    count = 8 // bits
    codes = np.ascontiguousarray(array).view(np.uint8).reshape(-1) & ((1 << bits) - 1)
    codes = np.pad(codes, (0, -len(codes) % count)).reshape(-1, count)
    return np.bitwise_or.reduce(codes << np.arange(0, 8, bits, dtype=np.uint8), axis=1).astype(np.uint8)


def unpacked(array: np.ndarray, shape: Sequence[int], dtype: DType) -> np.ndarray:
    """The numbers of a shape that lie in one line of bytes, as `packed` has them."""
    places = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    codes = (array[:, None] >> places) & ((1 << dtype.bits) - 1)
    codes = np.ascontiguousarray(codes.reshape(-1)[: int(np.prod(shape, dtype=np.int64))])
    return codes.view(dtype.numpy).reshape(shape)


def _turned(matrix: np.ndarray) -> np.ndarray:
    """The transposed matrix, dense: some rows at a time, so that lines of the caches serve as often as they can."""
    result = np.empty(matrix.shape[::-1], matrix.dtype)
    for first in range(0, len(matrix), _ROWS):
        result[:, first : first + _ROWS] = matrix[first : first + _ROWS].T
    return result


def _columns_axis(fields: dict[str, Any]) -> int:
    """The axis of a matrix that its columns are along."""
    return 0 if fields.get("transposed", True) else 1


def _regrouped(array: np.ndarray, axis: int, groups: tuple[int, int, int]) -> np.ndarray:
    """An axis seen as [a, b, width], as [b, a, width]."""
    split = array.reshape(*array.shape[:axis], *groups, *array.shape[axis + 1 :])
    return np.ascontiguousarray(split.swapaxes(axis, axis + 1)).reshape(array.shape)


def _tap_matrices(weights: np.ndarray, groups: int) -> np.ndarray:
    """[O, I, *kernel] as [groups, kernel * I, O / groups]."""
    rank = weights.ndim - 2
    parts = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
    ordered = parts.transpose(0, *range(3, rank + 3), 2, 1)
    return ordered.reshape(groups, -1, parts.shape[1])


def _winograd_taps(weights: np.ndarray, groups: int, width: int) -> np.ndarray:
    """[O, I, 3, 3] as [groups, 16, panels, I, width]: G g G' of each pair of channels, rounded once."""
    taps = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    parts = weights.reshape(groups, -1, *weights.shape[1:]).astype(np.float64)
    moved = taps @ parts @ taps.T
    matrices = moved.transpose(0, 3, 4, 2, 1).reshape(groups, 16, weights.shape[1], -1).astype(weights.dtype)
    return np.stack([np.stack([_to_panels(matrix, width) for matrix in group]) for group in matrices])


def _filters(weights: np.ndarray, points_y: int, points_x: int) -> np.ndarray:
    """[O, I, taps] as [points, I, O]: G g G' of each pair of channels, rounded once."""
    taps = weights.reshape(*weights.shape[:2], *((1, *weights.shape[2:]))[-2:]).astype(np.float64)
    found = _evaluation(points_y, taps.shape[2]) @ taps @ _evaluation(points_x, taps.shape[3]).T
    matrices = found.transpose(2, 3, 1, 0).reshape(points_y * points_x, weights.shape[1], weights.shape[0])
    return np.ascontiguousarray(matrices.astype(weights.dtype))


def _evaluation(points: int, taps: int) -> np.ndarray:
    """G of so many points: polynomials of the taps at 0, pairs and infinity, divided by what interpolation leaves."""
    if points == 1:
        return np.ones((1, 1))
    places = [0.0, *(sign * point for point in _PAIRS[points] for sign in (1.0, -1.0))]
    shares = [np.prod([place - other for other in places if other != place]) for place in places]
    rows = [[place**power / share for power in range(taps)] for place, share in zip(places, shares, strict=True)]
    return np.array([*rows, [*(0.0,) * (taps - 1), 1.0]])


def _to_panels(matrix: np.ndarray, width: int) -> np.ndarray:
    depth, columns = matrix.shape
    count = -(-columns // width)
    panels = np.zeros((count, depth, width), matrix.dtype)
    full = columns // width
    panels[:full] = matrix[:, : full * width].reshape(depth, full, width).transpose(1, 0, 2)
    if full < count:
        panels[full, :, : columns - full * width] = matrix[:, full * width :]
    return panels


def _to_nibbles(matrix: np.ndarray, width: int, block: int) -> np.ndarray:
    """Numbers [columns, depth] as bytes [panels][blocks][block / 2][width]."""
    panels = _to_panels(_of_four_bits(matrix).T, width)
    halves = panels.reshape(len(panels), -1, 2, block // 2, width)
    return np.ascontiguousarray((halves[:, :, 0] & 15) | (halves[:, :, 1] << 4))


def _from_nibbles(array: np.ndarray, columns: int, dtype: DType) -> np.ndarray:
    halves = np.stack([array & 15, array >> 4], axis=2)
    codes = _from_panels(halves.reshape(len(array), -1, array.shape[-1]), columns).T
    return _from_four_bits(codes, dtype)


def _to_words(matrix: np.ndarray, width: int) -> np.ndarray:
    """Numbers [columns, depth] as uint32 [panels][depth / 8][width]."""
    panels = _to_panels(_of_four_bits(matrix).T, width)
    eights = panels.reshape(len(panels), -1, 8, width)
    words = np.zeros((*eights.shape[:2], width), np.uint32)
    for step in range(8):
        words |= (eights[:, :, step] & 15).astype(np.uint32) << np.uint32(4 * step)
    return words


def _from_words(array: np.ndarray, columns: int, dtype: DType) -> np.ndarray:
    steps = [(array >> np.uint32(4 * step) & np.uint32(15)).astype(np.uint8) for step in range(8)]
    eights = np.stack(steps, axis=2)
    return _from_four_bits(_from_panels(eights.reshape(len(array), -1, array.shape[-1]), columns).T, dtype)


def _of_four_bits(matrix: np.ndarray) -> np.ndarray:
    """uint4 as bytes; int4 as 8 more."""
    codes = matrix.astype(np.int8) + 8 if matrix.dtype == int4.numpy else matrix
    return codes.view(np.uint8)


def _from_four_bits(codes: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype == int4:
        return np.ascontiguousarray(codes.view(np.int8) - np.int8(8)).astype(dtype.numpy)
    return np.ascontiguousarray(codes).view(dtype.numpy)


def _fragment(dtype: DType) -> tuple[int, int]:
    """Steps of the depth whose numbers of 64 columns are 16 bytes for each of 128 threads, and the lines of these."""
    return 64 if dtype.bits == 4 else 32, 2 if dtype.is_integer else 8


# The axes of 64 columns and a fragment's steps: (warp, half of its rows, row), (16 steps, half of these, thread, one of
# two).  A thread has the 16 bytes of all but warp, row and thread; in a word of integers halves of rows come first, so
# that both of two neighbours have the same place in the halves of the word.
_WORD_ORDER = (0, 4, 1, 3, 7, 5, 6, 8, 2)
_BYTE_ORDER = (0, 4, 1, 3, 7, 5, 6, 2, 8)
_NIBBLES = (0, 4, 1, 3, 7, 5, 8, 6, 2)


def _fragment_axes(dtype: DType) -> tuple[int, ...]:
    return _NIBBLES if dtype.bits == 4 else _WORD_ORDER if dtype.is_integer else _BYTE_ORDER


def _to_fragments(matrix: np.ndarray, dtype: DType) -> np.ndarray:
    step, _ = _fragment(dtype)
    columns, depth = -(-matrix.shape[0] // 64), -(-matrix.shape[1] // step)
    codes = np.zeros((columns * 64, depth * step), np.uint8)
    codes[: matrix.shape[0], : matrix.shape[1]] = _unsigned(matrix, dtype)
    parts = codes.reshape(columns, 4, 2, 8, depth, step // 16, 2, 4, 2)
    ordered = np.ascontiguousarray(parts.transpose(_fragment_axes(dtype)))
    if dtype.bits == 4:
        ordered = ordered[..., 0] | (ordered[..., 1] << 4)
    lines = ordered.reshape(columns, -1)
    typed = lines.view(np.int32) if dtype.is_integer else lines.view(dtype.numpy)
    return np.ascontiguousarray(typed.reshape(columns, -1, 256))


def _from_fragments(array: np.ndarray, shape: Sequence[int], dtype: DType) -> np.ndarray:
    step, _ = _fragment(dtype)
    columns, depth = -(-shape[0] // 64), -(-shape[1] // step)
    codes = array.reshape(columns, -1).view(np.uint8)
    if dtype.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1)
    axes = _fragment_axes(dtype)
    extents = (columns, 4, 2, 8, depth, step // 16, 2, 4, 2)
    parts = codes.reshape([extents[axis] for axis in axes]).transpose(np.argsort(axes))
    whole = parts.reshape(columns * 64, depth * step)[: shape[0], : shape[1]]
    return _from_unsigned(np.ascontiguousarray(whole), dtype)


def _unsigned(matrix: np.ndarray, dtype: DType) -> np.ndarray:
    """Bits of floats and unsigned integers as bytes, signed integers half of their range more."""
    if not dtype.is_integer or not dtype.is_signed:
        return matrix.view(np.uint8)
    return matrix.astype(np.int8).view(np.uint8) + np.uint8(1 << (dtype.bits - 1))


def _from_unsigned(codes: np.ndarray, dtype: DType) -> np.ndarray:
    if not dtype.is_integer or not dtype.is_signed:
        return codes.view(dtype.numpy)
    return (codes - np.uint8(1 << (dtype.bits - 1))).view(np.int8).astype(dtype.numpy)


def _panel_shape(depth: int, columns: int, width: int, group: int) -> tuple[int, ...]:
    shape = (-(-columns // width), depth // group, width)
    return shape if group == 1 else (*shape, group)


def _group_depth(panels: np.ndarray, group: int) -> np.ndarray:
    """[.., depth, width] as [.., depth / group, width, group]."""
    if group == 1:
        return panels
    *count, _, width = panels.shape
    return np.ascontiguousarray(panels.reshape(*count, -1, group, width).swapaxes(-2, -1))


def _ungroup_depth(panels: np.ndarray, group: int, width: int) -> np.ndarray:
    """[.., depth / group, width, group] as [.., depth, width]."""
    return panels if group == 1 else panels.swapaxes(-2, -1).reshape(*panels.shape[:-3], -1, width)


def _from_panels(panels: np.ndarray, columns: int) -> np.ndarray:
    count, depth, width = panels.shape
    return panels.transpose(1, 0, 2).reshape(depth, count * width)[:, :columns]
