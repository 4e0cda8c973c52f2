"""Generated kernels: elementwise chains and data movement, and the slots of library kernels.

The result is ordinary tile-language source (`JITFunction.from_source`): read it with
`tilewright inspect`.  Three loop forms, by what the accesses look like once axes are merged:

    flat      one loop variable: every tensor is walked in the same order, or is small and looked up
    rows      outer variables x a contiguous last one (broadcasts, gathers, slices, …)
    tiles     two variables as a two-dimensional block, where some tensor is read across its order
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tilewright.language as tl
from tilewright.dtypes import DType
from tilewright.graph.core import Node, Value
from tilewright.language.extra import libdevice
from tilewright.launch.jit import JITFunction
from tilewright.library import functions
from tilewright.library.activations import ROUNDED
from tilewright.library.binding import divides
from tilewright.library.candidate import KernelCall
from tilewright.library.cost import MEMORY_SECTOR, expected
from tilewright.library.generated.index import Coordinate, Division, Index, dense_strides, flatten, unflatten
from tilewright.library.generated.runs import AXIS, Run, Store, find_runs
from tilewright.library.generated.source import (
    LoopVariable,
    NamedReferences,
    Turned,
    Writer,
    expression_indices,
    first_elements,
    merge_axes,
)
from tilewright.library.generated.trace import (
    Conditional,
    Coordinates,
    ExpressionTracer,
    Load,
    axes_of,
    walk,
)
from tilewright.library.generated.walks import (
    ElementAccess,
    LoopSpace,
    grouped_space,
    line_space,
    share_of_sectors,
    short_walk,
    walk_of,
)
from tilewright.library.masks import and_masks
from tilewright.settings import settings
from tilewright.symbolic import Size, ceil_divide, lift, lower_bound, product, simplify, upper_bound
from tilewright.targets.base import Target

FLAT_BLOCK = 8192  # elements of one program of a flat kernel
ROW_ELEMENTS = 16384  # elements of one program of a row kernel
PLANE_ELEMENTS = 1024  # elements that make it worth to walk one row variable by itself
COLUMN_BLOCK = 4096  # a contiguous dimension up to this size is one block
TRANSPOSED_TILE = 32
_FEW_COLUMNS = 4
_LARGE_TILES = 512  # which keep all processors of a GPU busy
_NARROWEST = 16  # columns of a block: two threads of 16 bytes, a sector of memory
_LOOKED_UP = 4  # tensors of which a flat kernel looks elements up
_SMALL_SHARE = 16  # times that such a tensor goes into the results
_MANY_MOVED = 1 << 22  # elements of kernels whose programs take more of them where they read few bytes
_WRITTEN = 4  # times as many where nothing large is read
_READ_BYTES = 4  # of an element that are enough: 32 bytes of a thread, on their way while others come and go
_NEAR = 4  # elements from one that a GPU's thread reads to its neighbour's, which lie in one line of a cache
_SMALL_PLANE = 512  # elements that lie together, of which threads read in any order what their warp reads together
_TINY_TILE = 64
_MANY = 1 << 18  # elements of kernels whose last program alone has a mask
_LINE_BEGIN = 4  # elements that the begin of a line in a block costs


@dataclass(frozen=True)
class WorkSharing:
    """How generated kernels share work out on a kind of machine.

    `blocks` is the number of elements of a program whose blocks are powers of two, one for each number of elements
    from which on it is taken; without any, programs walk rows of any length.  `threads` are those of a program.
    Without blocks, stores of one form become a loop (`runs`), and operands may begin at any of their elements.
    `together`: independent loops share a launch, which costs more than the choice between them.
    `tile`: the rows and columns of a tile where there are plenty of both.
    """

    blocks: tuple[tuple[int, int], ...] = ()
    threads: int = 0
    together: bool = False
    tile: int = TRANSPOSED_TILE

    def block(self, elements: Size) -> int:
        """The elements of a program when there are so many in all."""
        total = expected(elements)
        return next(block for least, block in self.blocks if total >= least)

    def by_size(self, elements: Size) -> list[tuple[int | None, WorkSharing]]:
        """What to do for ranges of a number of elements that is known at run time: the end of each range, and how."""
        low, high = lower_bound(elements), upper_bound(elements)
        found: list[tuple[int | None, WorkSharing]] = []
        end: int | None = None
        for least, block in self.blocks:
            if least <= high:
                found.insert(0, (end, replace(self, blocks=((0, block),))))
                end = least - 1
            if least <= low:
                break
        return found or [(None, self)]


_CTA_THREADS = 128  # of a CTA


def loops_of(target: Target) -> WorkSharing:
    """How a target shares work out: over the threads of warps, where it has them."""
    if target.warp_threads == 1:
        return WorkSharing()
    # A thread moves 16 bytes of two-byte elements at once where there are enough to keep all of them busy.  Lines of
    # larger tiles are whole sectors of memory for what is written too, after an exchange between the threads.
    return WorkSharing(((1 << 19, 8 * _CTA_THREADS), (0, 2 * _CTA_THREADS)), _CTA_THREADS, True, 2 * TRANSPOSED_TILE)


_SOURCES: dict[tuple[str, DType | None], JITFunction] = {}


def function_from_source(
    name: str, source: str, rounded: DType | None = None, helpers: Mapping[str, Any] | None = None
) -> JITFunction:
    """The compiled-once function of a source text; equal texts give the same object.

    With `rounded` its activations are those that suit results stored so (`library.activations.ROUNDED`), which are
    instructions of a GPU that the interpreter has not.  `helpers` are functions that it may call besides those of
    `library.functions`, `libdevice` and `and_masks`.
    """
    activations = _rounded_activations(rounded)
    key = (source, rounded if activations else None)
    if key not in _SOURCES:
        namespace: dict[str, Any] = {"tl": tl, "libdevice": libdevice, "and_masks": and_masks}
        for helper, function in {**vars(functions), **activations, **(helpers or {})}.items():
            if isinstance(function, JITFunction) and re.search(rf"\b{helper}\(", source):
                namespace[helper] = function
        _SOURCES[key] = JITFunction.from_source(source, name, namespace)
    return _SOURCES[key]


def _rounded_activations(dtype: DType | None) -> Mapping[str, Any]:
    return ROUNDED.get(dtype, {}) if dtype is not None and not settings.interpret else {}


def forms_of(dtype: DType | None, suffix: str) -> frozenset[str]:
    """Activations ``f`` for results of a type that have a form ``f_of_half``, of half the argument, or ``f_scaled``,
    times a second one, for sources."""
    return frozenset(name.removesuffix(suffix) for name in _rounded_activations(dtype) if name.endswith(suffix))


def chain_name(nodes: Sequence[Node], fallback: str) -> str:
    """A readable function name from the ops of a chain."""
    ops = [node.op for node in nodes if node.op != "reshape"]
    if not ops:
        return fallback
    listed = ops if len(ops) <= 6 else [*ops[:5], f"and_{len(ops) - 5}_more"]
    return "_".join(["fused", *listed])


@dataclass(frozen=True)
class Result:
    """One tensor that a kernel writes: `value`'s elements go to `target` at their own position, moved
    by `offset` elements along `strides` (by default `target` is `value`, dense); or, of an `update`
    (a `scatter_update` or `scatter_reduce`), to the places that its indices say."""

    value: Value
    target: Value
    strides: tuple[Size, ...] | None = None
    offset: Size = 0
    update: Node | None = None

    def index(self, coordinates: Coordinates) -> Index:
        """Where the element at `coordinates` is stored."""
        strides = self.strides if self.strides is not None else dense_strides(self.value.shape)
        total = Index((), self.offset)
        for index, stride in zip(coordinates, strides, strict=True):
            total = total.plus(index.times(stride))
        return total


@dataclass
class _Traced:
    """Stores of one loop space."""

    extents: tuple[Size, ...]
    tracer: ExpressionTracer
    stores: list[Store]
    alike: bool  # whether kernels shall not depend on how many parts there are and where they begin

    def read(self) -> list[Index]:
        """Where elements are loaded."""
        return expression_indices([store.expression for store in self.stores], self.tracer)

    def large_loads(self) -> list[Load]:
        """Loads of tensors that make up a part of what is stored."""
        total = product(self.extents)
        loads = [part for store in self.stores for part in walk(store.expression) if isinstance(part, Load)]
        return [load for load in loads if _SMALL_SHARE * expected(product(load.value.shape)) > expected(total)]

    def widest(self) -> int:
        """Elements of an access of 16 bytes to the tensor with the narrowest ones."""
        loads = [part.value for store in self.stores for part in walk(store.expression) if isinstance(part, Load)]
        return 16 // max(1, min(value.dtype.itemsize for value in (*loads, *(store.target for store in self.stores))))

    def accesses(self, turned: tuple[int, int, int] | None = None) -> list[ElementAccess]:
        """What is stored, and the large tensors that are read, each once; `turned`: the axis, the step along it and the
        elements side by side of those that are read so."""
        elements = expected(product(self.extents))
        found = [ElementAccess(store.index, store.target.dtype.itemsize, elements, True) for store in self.stores]
        for load in {(load.value, load.index): load for load in self.large_loads()}.values():
            run = turned[2] if turned is not None and load.index.coefficient(turned[0]) == turned[1] else 0
            count = min(elements, expected(product(load.value.shape)))
            found.append(ElementAccess(load.index, load.dtype.itemsize, count, False, run))
        return found

    def begins_within_sectors(self, variables: Sequence[LoopVariable]) -> bool:
        """Whether lines that are stored, one for each step of the variables, begin within sectors of memory."""
        steps = [
            (store.index.coefficient(variable.axes[-1]), store.target.dtype.itemsize)
            for store in self.stores
            for variable in variables
        ]
        return any(isinstance(step, int) and step * size % MEMORY_SECTOR for step, size in steps)

    def is_small(self) -> bool:
        """Whether places in all tensors, and twice as many, are numbers of 32 bits: those are divided in few steps."""
        loads = [part.value for store in self.stores for part in walk(store.expression) if isinstance(part, Load)]
        return all(
            upper_bound(product(value.shape)) < 1 << 30 for value in (*loads, *(store.target for store in self.stores))
        )

    def indices(self) -> list[Index]:
        """Where elements are stored and loaded."""
        return [store.index for store in self.stores] + self.read()


def elementwise_call(
    nodes: Sequence[Node], results: Sequence[Result], constants: Mapping[Value, np.ndarray], target: Target,
    loops: WorkSharing | None = None,
) -> KernelCall:  # fmt: skip
    """One kernel that computes `results`, all of one shape (up to reshapes), from `nodes`; `loops`: other than those of
    the target.

    Raises `NotImplementedError` when an op has no elementwise form.
    """
    loops = loops or loops_of(target)
    traced = _trace_results(nodes, results, constants, loops)
    variables = merge_axes(traced.extents, traced.indices())
    name = chain_name(nodes, "copy")
    across = _read_across(traced, variables, *((_NEAR, 2, _SMALL_PLANE) if loops.blocks else (1, 2, 0)))
    groups = _groups(traced, variables, across) if loops.blocks else None
    if groups is not None:
        rows, columns, inner = groups
        traced = _trace_results(nodes, results, constants, loops, grouped_space(variables, [rows, columns]))
        last = len(traced.extents) - 1
        variables = merge_axes(traced.extents, traced.indices(), frozenset((last - 1, last)))
        call = _tile_kernel(name, traced, variables, len(variables) - 2, loops, inner)
    elif across is not None:
        call = _tile_kernel(name, traced, variables, across, loops)
    elif len(variables) <= 1:
        call = _flat_kernel(name, traced, variables, loops)
    elif loops.blocks and _begins_anywhere(traced, variables):
        traced = _trace_results(nodes, results, constants, loops, line_space(traced.extents))
        call = _flat_kernel(name, traced, merge_axes(traced.extents, traced.indices()), loops)
    elif loops.blocks:
        call = _block_kernel(name, traced, variables, loops)
    else:
        call = _row_kernel(name, traced, variables)
    return replace(call, threads=loops.threads)


def _trace_results(
    nodes: Sequence[Node], results: Sequence[Result], constants: Mapping[Value, np.ndarray], loops: WorkSharing,
    space: LoopSpace | None = None,
) -> _Traced:  # fmt: skip
    """Trace over the first result's dimensions, split where an index needs quotients of one of them; or over the axes
    of a `space`."""
    shape = results[0].value.shape
    extents = shape if space is None else space.extents
    alike = not loops.blocks and all(result.update is None for result in results)
    for _ in range(8):
        line = flatten(axes_of(extents), extents) if space is None else space.line
        coordinates = unflatten(line, shape)
        tracer = ExpressionTracer(nodes, constants)
        stores = []
        for result in results:
            own = coordinates
            if result.value.shape != shape:
                own = unflatten(flatten(coordinates, shape), result.value.shape)
            update, reduction = result.update, ""
            index, guards = (result.index(own), ()) if update is None else tracer.place(update, own)
            if update is not None:
                reduction = update.attributes.get("reduction", "")
            stores.append(Store(result.target, index, tracer.trace(result.value, own), guards, reduction))
        traced = _Traced(extents, tracer, stores, alike)
        split = _wanted_split(traced)
        if split is None or space is not None:
            return traced
        axis, divisor = split
        outer = simplify(lift(extents[axis]) // divisor)
        extents = (*extents[:axis], outer, divisor, *extents[axis + 1 :])
    return traced


def _wanted_split(traced: _Traced) -> tuple[int, Size] | None:
    """An axis and a size that divides it, whose quotient and remainder are used as indices."""
    for index in traced.indices():
        for nested in index.nested():
            for atom, _ in nested.terms:
                if not isinstance(atom, Division) or len(atom.index.terms) != 1 or atom.index.constant != 0:
                    continue
                ((inner, step),) = atom.index.terms
                if isinstance(inner, Coordinate) and step == 1:
                    if simplify(lift(inner.extent) % atom.divisor) == 0:
                        return inner.axis, atom.divisor
    return None


def _read_across(
    traced: _Traced, variables: Sequence[LoopVariable], near: int, least: int, plane: int
) -> int | None:  # fmt: skip
    """The position of a variable along which some tensor is contiguous while along the last, of at least so many
    elements, its elements are more than `near` apart.

    Not where all of them lie within `plane` elements: a tile would have no more than that, a CTA for each.
    """
    if len(variables) < 2:
        return None
    last = variables[-1].axes[-1]
    if isinstance(variables[-1].extent, int) and variables[-1].extent < least:
        return None
    for index in traced.read():
        step = index.coefficient(last)
        # Quotients of the last variable make steps of another length than its coefficient says.
        divided = plane and any(nested.coefficient(last) != 0 for nested in index.nested() if nested is not index)
        if (
            not divided
            and isinstance(step, int)
            and (0 <= step <= near or _lies_together(step, variables[-1].extent, plane))
        ):
            continue
        for position, variable in enumerate(variables[:-1]):
            if index.coefficient(variable.axes[-1]) == 1 and not (plane and _is_tiny(variable, variables[-1])):
                return position
    return None


def _groups(
    traced: _Traced, variables: Sequence[LoopVariable], across: int | None
) -> tuple[list[int], list[int], int] | None:
    """The variables that are a row and a column of a tile, the fastest first, where one of each makes lines of less
    than a sector of memory: those that are read without a gap, and those that are written so.  If the fastest is the
    same it belongs to the column, and its extent is given too (else 1).  None where a row and a column are enough.
    """
    if any(extent == 0 for extent in traced.extents) or len(variables) < 3:
        return None
    written, size = walk_of(traced.stores[0].index, variables), traced.stores[0].target.dtype.itemsize
    last, loads = len(variables) - 1, traced.large_loads()
    if not written or written[0] != last or any(store.guards or store.reduction for store in traced.stores):
        return None
    walks = [(walk_of(load.index, variables), load.dtype.itemsize) for load in loads]
    if across is not None:
        walk, read_size = next((found for found in walks if found[0][:1] == [across]), ([across], size))
        columns = short_walk(written, variables, size, [across])
        rows = short_walk(walk, variables, read_size, columns)
        return (rows, columns, 1) if len(rows) + len(columns) > 2 else None
    extent = variables[last].extent
    if not isinstance(extent, int) or extent * size >= MEMORY_SECTOR or len(written) < 2:
        return None
    others = [walk for walk, _ in walks if len(walk) > 1 and walk[0] == last and walk[1] != written[1]]
    if not others:
        return None
    rows = short_walk(others[0][1:], variables, size * extent, written[:2])
    return rows, [last, written[1]], extent


def _lies_together(step: int, extent: Size, plane: int) -> bool:
    """Whether so many elements, `step` apart, are within `plane` elements of memory."""
    return step > 0 and isinstance(extent, int) and step * extent <= plane


def _is_tiny(row: LoopVariable, column: LoopVariable) -> bool:
    """Whether a tile has so few elements that reading sectors again, once for each row, takes less than the CTAs."""
    elements = product([row.extent, column.extent])
    return isinstance(elements, int) and elements <= _TINY_TILE and upper_bound(row.extent) <= _NEAR


def _begins_anywhere(traced: _Traced, variables: Sequence[LoopVariable]) -> bool:
    """Whether lines of tensors as large as the results begin at no multiple of 16 bytes, and all else is small.

    Walked as one line, the large ones are moved in vectors, and what is small is looked up.
    """
    items = [item for store in traced.stores for item in walk(store.expression)]
    guarded = any(store.guards for store in traced.stores) or any(isinstance(item, Conditional) for item in items)
    if guarded or traced.tracer.loaded or not traced.is_small():
        return False
    strides = dense_strides([variable.extent for variable in variables])
    line = {variable.axes[-1]: stride for variable, stride in zip(variables, strides, strict=True)}
    accesses = [(store.target, store.index) for store in traced.stores]
    accesses += {item.value: (item.value, item.index) for item in items if isinstance(item, Load)}.values()
    large = [value for value, index in accesses if all(index.coefficient(axis) == line[axis] for axis in line)]
    looked_up = [product(value.shape) for value, _ in accesses if value not in large]
    total, columns = product(traced.extents), variables[-1].extent
    if not isinstance(total, int) or not isinstance(columns, int) or len(looked_up) > _LOOKED_UP:
        return False
    little = all(isinstance(count, int) and _SMALL_SHARE * count <= total for count in looked_up)
    return little and any(columns * value.dtype.itemsize % 16 for value in large)


def decompose(variables: Sequence[LoopVariable], names: Sequence[str], whole: str, writer: Writer) -> list[str]:
    """Lines that split a flattened counter into loop variables (the last one fastest)."""
    lines: list[str] = []
    if len(variables) <= 1:
        return lines
    rest = whole
    for position in reversed(range(len(variables))):
        if position == 0:
            lines.append(f"{names[0]} = {rest}")
        else:
            extent = writer.size(variables[position].extent)
            lines.append(f"{names[position]} = {rest} % {extent}")
            left = f"before_{names[position]}"  # of its own: rows are split outside of the loop that splits columns
            lines.append(f"{left} = {rest} // {extent}")
            rest = left
    return lines


def names_of(count: int, single: str) -> list[str]:
    """The names of so many loop variables."""
    return [single] if count == 1 else [f"{single}_{position}" for position in range(count)]


def source_text(name: str, parameters: Sequence[str], constants: Sequence[str], body: Sequence[str]) -> str:
    arguments = [*parameters, *(f"{constant}: tl.constexpr" for constant in constants)]
    return "\n".join([f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in body), ""])


def _finish(
    name: str, writer: Writer, references: NamedReferences, constants: dict[str, Any], body: list[str],
    grid: tuple[Size, Size, Size],
) -> KernelCall:  # fmt: skip
    source = source_text(name, list(references.operands), list(constants), body)
    kernel = function_from_source(name, source)
    return KernelCall(kernel, dict(references.operands), dict(references.types), constants, grid)


def _store_all(traced: _Traced, writer: Writer) -> list[str]:
    """All stores of a kernel as lines; every value that is not of a run is computed before the first store."""
    single, runs = find_runs(traced.stores) if traced.alike else (traced.stores, [])
    writer.start_at(first_elements([store.expression for store in traced.stores], traced.tracer))
    for store in single:
        writer.write(store.expression)
    for store in single:
        writer.store(store.target, store.index, store.expression, store.guards, reduction=store.reduction)
    for number, run in enumerate(runs):
        _store_run(run, writer, f"turn_{number}")
    return writer.lines


def _store_run(run: Run, writer: Writer, name: str) -> None:
    """Lines of a loop that stores the elements of a run."""
    for shared in run.shared:
        writer.write(shared)
    with writer.counting(AXIS, name, run.count):
        writer.store(run.store.target, run.store.index, run.store.expression)


def _flat_kernel(name: str, traced: _Traced, variables: Sequence[LoopVariable], loops: WorkSharing) -> KernelCall:
    references = NamedReferences(parts=traced.alike)
    for store in traced.stores:
        references.result(store.target)
    total: Size = variables[0].extent if variables else 1
    block = loops.block(total) if loops.blocks else FLAT_BLOCK
    if loops.blocks and traced.read():
        block *= _times_as_many(traced)
    if isinstance(total, int) and not loops.blocks:
        programs = 1 if total <= 2048 else 2 * -(-total // (2 * FLAT_BLOCK))
        block = -(-total // programs)
    masked = bool(variables) and (not isinstance(total, int) or total % block != 0)
    writer = Writer(traced.tracer, references, variables, ["column"][: len(variables)], "mask" if masked else "")
    wide = "" if loops.blocks and traced.is_small() else ".to(tl.int64)"  # quotients of 32 bits take few steps
    head = [f"column = tl.program_id(0){wide} * BLOCK + tl.arange(0, BLOCK)"]
    if masked:
        head.append(f"mask = column < {writer.size(total)}")
    if not variables:
        head = []
    constants, grid = {"BLOCK": block} if variables else {}, (ceil_divide(total, block), 1, 1)
    body = _store_all(traced, writer)
    if loops.blocks and isinstance(total, int) and total >= _MANY and total % traced.widest():
        # A mask that ends within 16 bytes keeps accesses from being as wide: only the last program has one.
        whole = Writer(traced.tracer, references, variables, ["column"], "")
        lines = [f"    {line}" for line in _store_all(traced, whole)]
        body = [f"if tl.program_id(0) < {total // block}:", *lines, "else:", *(f"    {line}" for line in body)]
    return _finish(name, writer, references, constants, head + body, grid)


def _row_kernel(name: str, traced: _Traced, variables: Sequence[LoopVariable]) -> KernelCall:
    references = NamedReferences(parts=traced.alike)
    for store in traced.stores:
        references.result(store.target)
    outer, inner = variables[:-1], variables[-1]
    whole = isinstance(inner.extent, int) and inner.extent <= COLUMN_BLOCK
    block = inner.extent if whole else 1024
    assert isinstance(block, int)
    # A long innermost row variable is walked by itself; only then no row needs divisions.
    separate = len(outer) > 1 and expected(outer[-1].extent) * block >= PLANE_ELEMENTS
    planes, walked = (outer[:-1], outer[-1:]) if separate else ([], outer)
    rows = product([variable.extent for variable in walked])
    rows_per_program = max(1, ROW_ELEMENTS // block)
    if isinstance(rows, int):
        programs = -(-rows // rows_per_program) if separate else 2 * -(-rows // (2 * rows_per_program))
        rows_per_program = max(1, -(-rows // programs))
    plane_names = names_of(len(planes), "plane")
    row_names = names_of(len(walked), "row")
    names = [*plane_names, *row_names, "column"]
    writer = Writer(traced.tracer, references, variables, names, "" if whole else "mask")
    head = ["first = tl.program_id(0) * ROWS"]
    if planes:
        head += ["plane = tl.program_id(2).to(tl.int64)", *decompose(planes, plane_names, "plane", writer)]
    loop = ["row = index.to(tl.int64)", *decompose(walked, row_names, "row", writer)]
    if whole:
        loop.append("column = tl.arange(0, COLUMNS)")
    else:
        loop.append("column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)")
        loop.append(f"mask = column < {writer.size(inner.extent)}")
    loop += _store_all(traced, writer)
    body = [
        *head,
        f"for index in range(first, tl.minimum(first + ROWS, {writer.size(rows)})):",
        *(f"    {line}" for line in loop),
    ]
    grid = (
        ceil_divide(rows, rows_per_program),
        ceil_divide(inner.extent, block),
        product([variable.extent for variable in planes]),
    )
    return _finish(name, writer, references, {"ROWS": rows_per_program, "COLUMNS": block}, body, grid)


def _block_kernel(name: str, traced: _Traced, variables: Sequence[LoopVariable], loops: WorkSharing) -> KernelCall:
    """Rows and columns as a two-dimensional block of powers of two; other variables are parts of the row."""
    references = NamedReferences(parts=traced.alike)
    for store in traced.stores:
        references.result(store.target)
    outer, inner = variables[:-1], variables[-1]
    rows = product([variable.extent for variable in outer])
    block = loops.block(product([rows, inner.extent]))
    block *= _times_as_many(traced)
    columns = _column_block(inner.extent, block) if isinstance(inner.extent, int) else block
    count = block // columns
    names = names_of(len(outer), "row")
    masked = (not divides(count, rows), not divides(columns, inner.extent))
    writer = Writer(traced.tracer, references, variables, [*names, "column"], "mask" if any(masked) else "")
    writer.row_mask = f"(row < {writer.size(rows)})" if masked[0] else ""
    writer.column_mask = f"(column < {writer.size(inner.extent)})" if masked[1] else ""
    wide = "" if lower_bound(rows) >= count and traced.is_small() else ".to(tl.int64)"
    body = [f"row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)){wide}[:, None]"]
    body.append("column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]")
    if any(masked):
        body.append("mask = " + " & ".join(limit for limit in (writer.row_mask, writer.column_mask) if limit))
    body += decompose(outer, names, "row", writer)
    body += _store_all(traced, writer)
    grid = (ceil_divide(rows, count), ceil_divide(inner.extent, columns), 1)
    call = _finish(name, writer, references, {"ROWS": count, "COLUMNS": columns}, body, grid)
    share = share_of_sectors(traced.accesses(), variables, _steps_of_rows(variables, count, columns))
    return replace(call, sectors=share)


def _steps_of_rows(variables: Sequence[LoopVariable], rows: int, columns: int) -> dict[int, int]:
    """How far a block of rows and columns goes along each variable."""
    steps = {len(variables) - 1: columns}
    for position in reversed(range(len(variables) - 1)):
        extent = variables[position].extent
        steps[position] = max(1, min(rows, extent) if isinstance(extent, int) else rows)
        rows //= steps[position]
    return steps


def _times_as_many(traced: _Traced) -> int:
    """How many times the usual elements a program takes: of a kernel of many elements that reads few bytes, each
    program waits for what it reads, then only writes."""
    total = product(traced.extents)
    if not isinstance(total, int) or total < _MANY_MOVED or traced.tracer.loaded:
        return 1
    items = [item for store in traced.stores for item in walk(store.expression)]
    read = {item.value: product(item.value.shape) for item in items if isinstance(item, Load)}
    if not all(isinstance(count, int) for count in read.values()):
        return 1
    large = [value.dtype.itemsize for value, count in read.items() if _SMALL_SHARE * expected(count) > total]
    return max(1, _READ_BYTES // sum(large)) if large else _WRITTEN


def _column_block(columns: int, block: int) -> int:
    """Columns of a block: a power of two that leaves few lanes without an element; lines of few columns cost a bit."""
    least = min(_NARROWEST, next_power_of_2(columns))
    widths = [1 << power for power in range(least.bit_length() - 1, block.bit_length())]
    return min(widths, key=lambda width: -(-columns // width) * (width + _LINE_BEGIN))


def _tile_kernel(
    name: str, traced: _Traced, variables: Sequence[LoopVariable], across: int, loops: WorkSharing, inner: int = 1
) -> KernelCall:
    """A block of rows, which some tensor has as its fastest, and columns; of these `inner` may follow each other in
    that tensor too."""
    references = NamedReferences(parts=traced.alike)
    for store in traced.stores:
        references.result(store.target)
    outer = [variable for position, variable in enumerate(variables[:-1]) if position != across]
    row, column = variables[across], variables[-1]
    outer_names = names_of(len(outer), "plane")
    ordered = [*outer, row, column]
    writer = Writer(traced.tracer, references, ordered, [*outer_names, "row", "column"], "mask")
    planes = product([variable.extent for variable in outer])
    rows, columns = _tile(row.extent, column.extent, planes, loops)
    if rows == columns == loops.tile > TRANSPOSED_TILE and _fills(2 * columns, column.extent):
        if traced.begins_within_sectors([*outer, row]):  # longer lines have fewer ends
            rows, columns = rows // 2, 2 * columns
    starts = [
        # Known to begin at 0, so that what a tile has beyond the dimension is never read.
        "" if _covers(count, variable.extent) else f"tl.program_id({axis}) * {name} + "
        for axis, (name, count, variable) in enumerate((("TILE_ROWS", rows, row), ("TILE_COLUMNS", columns, column)))
    ]
    body = [f"row = ({starts[0]}tl.arange(0, TILE_ROWS)).to(tl.int64)[:, None]"]
    body.append(f"column = ({starts[1]}tl.arange(0, TILE_COLUMNS))[None, :]")
    body.append(f"mask = (row < {writer.size(row.extent)}) & (column < {writer.size(column.extent)})")
    if outer:
        body += ["plane = tl.program_id(2).to(tl.int64)", *decompose(outer, outer_names, "plane", writer)]
    if inner > 1:
        writer.turned = Turned(row, column, inner)
        body += _turned_places(writer, row, column, inner)
    body += _store_all(traced, writer)
    grid = (ceil_divide(row.extent, rows), ceil_divide(column.extent, columns), planes)
    call = _finish(name, writer, references, {"TILE_ROWS": rows, "TILE_COLUMNS": columns}, body, grid)
    turned = (row.axes[-1], inner, inner * rows) if inner > 1 else None
    block = {len(outer): rows, len(outer) + 1: columns}
    return replace(call, sectors=share_of_sectors(traced.accesses(turned), ordered, block)) if loops.blocks else call


def _turned_places(writer: Writer, row: LoopVariable, column: LoopVariable, inner: int) -> list[str]:
    """Lines for the places of a tile in the order of a tensor that has runs of `inner` columns, then rows."""
    if next_power_of_2(inner) != inner:
        return []
    rows, columns = writer.size(simplify(lift(column.extent) // inner)), writer.size(lift(row.extent) * inner)
    block, line = f"(TILE_COLUMNS // {inner})", f"(TILE_ROWS * {inner})"
    return [
        f"turned_row = (tl.program_id(1) * {block} + tl.arange(0, TILE_COLUMNS // {inner})).to(tl.int64)[:, None]",
        f"turned_column = (tl.program_id(0) * {line} + tl.arange(0, TILE_ROWS * {inner})).to(tl.int64)[None, :]",
        f"turned_mask = (turned_row < {rows}) & (turned_column < {columns})",
    ]


def _covers(block: int, extent: Size) -> bool:
    """Whether one block has all of a dimension."""
    return isinstance(extent, int) and block >= extent


def _tile(row: Size, column: Size, planes: Size, loops: WorkSharing) -> tuple[int, int]:
    """The rows and columns of a tile: as many of both; on GPUs powers of two, and where one of them is short more of
    the other, so that a program has as much to do as one of a square tile."""
    total = product([planes, row, column])
    large = all(_fills(loops.tile, extent) for extent in (row, column))
    tile = loops.tile if large and isinstance(total, int) and total >= _LARGE_TILES * loops.tile**2 else TRANSPOSED_TILE
    rows, columns = (min(extent, tile) if isinstance(extent, int) else tile for extent in (row, column))
    if not loops.blocks:
        few = isinstance(column, int) and column < _FEW_COLUMNS  # whose vectors are interleaved
        return (min(row, tile**2) if isinstance(row, int) else tile**2) if few else rows, columns
    if min(rows, columns) == tile or not isinstance(total, int):
        return next_power_of_2(rows), next_power_of_2(columns)
    if rows < columns:
        return next_power_of_2(rows), _long_side(rows, column, total, loops)
    return _long_side(columns, row, total, loops), next_power_of_2(columns)


def _fills(tile: int, extent: Size) -> bool:
    """Whether large tiles leave nothing over of a dimension, or on GPUs little: lines of small ones are short."""
    if divides(tile, extent):
        return True
    return tile > TRANSPOSED_TILE and isinstance(extent, int) and 2 * (-extent % tile) <= extent


def _long_side(short: int, extent: Size, total: int, loops: WorkSharing) -> int:
    """How far a tile goes along a dimension where it has all `short` elements of the other."""
    most = loops.tile**2 // next_power_of_2(short)
    while most > TRANSPOSED_TILE and (most >= 2 * expected(extent) or total < _LARGE_TILES * short * most):
        most //= 2
    return max(TRANSPOSED_TILE, most)


def next_power_of_2(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()
