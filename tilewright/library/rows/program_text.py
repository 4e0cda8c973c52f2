"""The tile-language text of a row program: one launch, or the launches of rows in parts.

A CTA (an instance) has `lanes` kept elements and walks what is reduced for them in blocks of `block` elements:

    along    blocks [lanes, block]; the last dimension is reduced, and read along the rows of a block
    across   blocks [block, lanes]; the last dimension is kept

    row      the kept elements of a CTA, [lanes, 1] or [1, lanes]; after `plane`, where not all of them are lanes
    column   the reduced ones, [1, block] or [block, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DType
from tilewright.graph.core import Value
from tilewright.graph.neutral import neutral_element
from tilewright.launch.jit import JITFunction
from tilewright.library.binding import divides
from tilewright.library.candidate import KernelCall
from tilewright.library.generated.expressions import literal
from tilewright.library.generated.generate import decompose, function_from_source, names_of, next_power_of_2
from tilewright.library.generated.source import (
    LoopVariable,
    NamedReferences,
    Writer,
    expression_indices,
    merge_axes,
    own_indices,
)
from tilewright.library.generated.trace import ElementwiseOperation, Expression, ExpressionTracer, Load, walk
from tilewright.library.reduce.kernel import combine, reduce_axis
from tilewright.library.rows import program_kernel
from tilewright.library.rows.program import MOMENTS, POWERS, RowProgram, RowReduction
from tilewright.symbolic import Size, ceil_divide, lift, lower_bound, product, simplify, upper_bound

_EARLY_ELEMENTS = 24  # elements of a thread up to which what there is of each column is loaded with the rows
_LAST_LANES = 8  # of a CTA that only puts parts together
_HELPERS: dict[str, Any] = {
    "combine": combine,
    "reduce_axis": reduce_axis,
    **{name: item for name, item in vars(program_kernel).items() if isinstance(item, JITFunction)},
}


@dataclass(frozen=True)
class Walk:
    """The loop variables of a program: kept ones in planes and lanes, reduced ones."""

    planes: tuple[LoopVariable, ...]
    lanes: tuple[LoopVariable, ...]
    columns: tuple[LoopVariable, ...]
    along: bool

    @property
    def plane_count(self) -> Size:
        return product([variable.extent for variable in self.planes])

    @property
    def lane_count(self) -> Size:
        return product([variable.extent for variable in self.lanes])

    @property
    def column_count(self) -> Size:
        return product([variable.extent for variable in self.columns])


def _variables(program: RowProgram) -> tuple[tuple[LoopVariable, ...], tuple[LoopVariable, ...], bool]:
    """The kept loop variables, the reduced ones, and whether the last one is reduced."""
    axes = program.space.axes
    indices = [item.index for item in program.stored] + expression_indices(program.roots(), program.tracer)
    shape = program.space.shape
    wide = [axis for axis, extent in enumerate(shape) if extent != 1]
    fixed = {right for left, right in zip(wide, wide[1:], strict=False) if (left in axes) != (right in axes)}
    variables = merge_axes(shape, indices, frozenset(fixed))
    columns = tuple(variable for variable in variables if variable.axes[-1] in axes)
    outer = tuple(variable for variable in variables if variable.axes[-1] not in axes)
    return outer, columns, variables[-1] in columns


def walk_by_memory(program: RowProgram, narrow: int) -> Walk | None:
    """The loop variables where neighbours in memory are elements of different rows, which are lanes then, at least
    `narrow` of them; None where each row lies together, as far as that can be told."""
    outer, columns, along = _variables(program)
    loads = [item for root in program.roots() for item in walk(root) if isinstance(item, Load)]
    whole = upper_bound(product(program.space.shape))
    full = [item.index for item in loads if lower_bound(product(item.value.shape)) >= whole]
    if not along or any(index.coefficient(columns[-1].axes[-1]) == 1 for index in full):
        return None
    for variable in outer:
        near = [index for index in full if index.coefficient(variable.axes[-1]) == 1]
        if near and isinstance(variable.extent, int) and variable.extent >= narrow:
            return Walk(tuple(other for other in outer if other is not variable), (variable,), columns, False)
    return None


def walk_of(program: RowProgram, narrow: int) -> Walk:
    """The loop variables; kept ones after the last reduced one are lanes by themselves from `narrow` elements on."""
    outer, columns, along = _variables(program)
    if along:
        return Walk((), outer, columns, True)
    last = outer[-1].extent
    if isinstance(last, int) and last < narrow:
        return Walk((), outer, columns, False)
    return Walk(outer[:-1], outer[-1:], columns, False)


@dataclass(frozen=True)
class ProgramConfig:
    """The blocks of a program's CTAs; `whole`: all that is reduced is one block; `parts` CTAs share a row.

    `threads` are those of a GPU's CTA, 0 on CPUs.
    """

    lanes: int
    block: int
    threads: int
    whole: bool
    parts: int = 1


class _RowWriter(Writer):
    """A writer whose loads that do not depend on the column, or on the row, have masks of their own."""

    def __init__(
        self, tracer: ExpressionTracer, references: NamedReferences, variables: Sequence[LoopVariable],
        names: Sequence[str], row_mask: str, column_mask: str,
    ) -> None:  # fmt: skip
        super().__init__(tracer, references, variables, names, "mask" if row_mask or column_mask else "")
        self.row_mask, self.own_column_mask = row_mask, column_mask

    def _masked_index(self, item: Load) -> str:
        offset = self.index(item.index)
        by_row, by_column = (self._follows([item.index], name) for name in ("row", "column"))
        mask = {(True, True): self.mask, (True, False): self.row_mask, (False, True): self.own_column_mask,
                (False, False): ""}[by_row, by_column]  # fmt: skip
        if not item.guards:
            return f"({offset}), mask={mask}" if mask else f"({offset})"
        inside = self.guards(item.guards)
        if not by_row and not by_column:
            offset = f"copies({offset if item.index.terms else f'tl.full((), {offset}, tl.int64)'}, {inside})"
        return f"({offset}), mask={mask} & {inside}" if mask else f"({offset}), mask={inside}"

    def follows_column(self, item: Expression) -> bool:
        return self.follows_columns(own_indices(item))

    def is_of_column(self, item: Load) -> bool:
        """Whether an element depends on the column alone."""
        return self._follows([item.index], "column") and not self._follows([item.index], ("row", "plane"))

    def forked(self) -> _RowWriter:
        """A writer of what stands in a loop that follows."""
        inner = copy(self)
        inner.lines = []
        for name in ("_texts", "_guards", "_divisions", "_loaded"):
            setattr(inner, name, dict(getattr(self, name)))
        return inner

    def joined(self, inner: _RowWriter) -> None:
        """Go on after a loop: names are used once."""
        self._count = inner._count


class _LaunchWriter:
    """Writes the text of one launch."""

    def __init__(
        self, program: RowProgram, walk: Walk, config: ProgramConfig, partial: dict[RowReduction, list[Value]]
    ) -> None:
        self.program, self.walk, self.config, self.partial = program, walk, config, partial
        self.references = NamedReferences()
        self.axis = 1 if walk.along else 0
        self.wide = ".to(tl.int64)" if program.is_wide else ""
        row_masked = not divides(config.lanes, walk.lane_count)
        self.column_masked = not divides(config.block, walk.column_count)  # parts are whole blocks
        variables = [*walk.planes, *walk.lanes, *walk.columns]
        self.row_names, self.column_names = names_of(len(walk.lanes), "row"), names_of(len(walk.columns), "column")
        names = [*names_of(len(walk.planes), "plane"), *self.row_names, *self.column_names]
        self.writer = _RowWriter(program.tracer, self.references, variables, names,
                                 row_mask="row_mask" if row_masked else "",
                                 column_mask="column_mask" if self.column_masked else "")  # fmt: skip
        self.lines = self.writer.lines
        self.given: set[RowReduction] = set()

    # Places

    def head(self, parts: int) -> None:
        """The CTA's kept elements, and its part of the reduced ones."""
        walk, writer, emit = self.walk, self.writer, self.lines.append
        emit("own = tl.program_id(0)")
        if parts > 1 and walk.along:
            emit("part = own % PARTS")
            emit("own = own // PARTS")
        block = "own"
        if walk.planes:
            emit(f"strips = tl.cdiv({writer.size(walk.lane_count)}, LANES).to(tl.int32)")
            emit("block = own % strips")
            emit("own = own // strips")
            block = "block"
        elif parts > 1 and not walk.along:
            emit(f"strips = tl.cdiv({writer.size(walk.lane_count)}, LANES).to(tl.int32)")
            emit("block = own % strips")
            emit("own = own // strips")
            block = "block"
        if parts > 1 and not walk.along:
            emit("part = own % PARTS")
            emit("own = own // PARTS")
        if walk.planes:
            emit(f"plane = own{self.wide}")
            self.lines += decompose(walk.planes, names_of(len(walk.planes), "plane"), "plane", writer)
        emit(f"row = ({block} * LANES + tl.arange(0, LANES)){self.wide}{self._kept_axis()}")
        if writer.row_mask:
            emit(f"row_mask = row < {writer.size(walk.lane_count)}")
        self.lines += decompose(walk.lanes, self.row_names, "row", writer)
        columns = writer.size(walk.column_count)
        emit(f"lane = tl.arange(0, BLOCK){self._reduced_axis()}")
        if parts > 1:
            emit(f"share = {writer.size(self._share())}")
            emit(f"first = part{self.wide} * share")
            emit(f"stop = tl.minimum(first + share, {columns})")

    def _share(self) -> Size:
        return share_of(self.walk.column_count, self.config)

    def _kept_axis(self) -> str:
        return "[:, None]" if self.walk.along else "[None, :]"

    def _reduced_axis(self) -> str:
        return "[None, :]" if self.walk.along else "[:, None]"

    def _shape(self) -> str:
        return "(LANES, BLOCK)" if self.walk.along else "(BLOCK, LANES)"

    def _bounds(self) -> tuple[str, str]:
        if self.config.parts > 1:
            return "first", "stop"
        return "0", self.writer.size(self.walk.column_count)

    def _column(self, writer: _RowWriter, start: str) -> list[str]:
        """Lines for the columns of a block from `start` on, and the masks."""
        stop = self._bounds()[1]
        lines = [f"column = {start} + lane" if start else "column = lane"]
        if self.column_masked:
            lines.append(f"column_mask = column < {stop}")
        masks = [mask for mask in (writer.row_mask, writer.own_column_mask) if mask]
        if masks:
            lines.append(f"mask = {' & '.join(masks)}")
        inner = self.walk.columns[-1].extent
        if start and len(self.walk.columns) > 1 and divides(self.config.block, inner):  # one quotient for a whole block
            lines.append(f"{self.column_names[-1]} = {start} % {writer.size(inner)} + lane")
            lines.append(f"outside = {start} // {writer.size(inner)} + lane * 0")
            lines += decompose(self.walk.columns[:-1], self.column_names[:-1], "outside", writer)
            if len(self.walk.columns) == 2:
                lines.append(f"{self.column_names[0]} = outside")
        else:
            lines += decompose(self.walk.columns, self.column_names, "column", writer)
        if self.wide:
            lines += [f"{name} = {name}{self.wide}" for name in self.column_names]
        return lines

    # Reductions

    def block_of(self, writer: _RowWriter, item: Expression, dtype: DType, outside: str | None) -> str:
        """The text of an expression as a whole block, `outside` where there are no elements."""
        text = writer.write(item)
        if not writer.follows_column(item):
            text = f"tl.where(lane >= 0, {text}, {text})"
        text = f"tl.broadcast_to(({text}).to(tl.{dtype.name}), {self._shape()})"
        if outside is not None and self.column_masked:
            text = f"tl.where(column_mask, {text}, {outside})"
        return writer.define("x", text)

    def reduce_whole(self) -> None:
        """All reductions, of blocks that hold all that is reduced."""
        self.lines += self._column(self.writer, "")
        columns = self.writer.size(self.walk.column_count)
        for number, item in enumerate(self.program.reductions):
            outside = _neutral(item)
            x = self.block_of(self.writer, item.expression, item.dtype, outside)
            if number == 0:
                self._load_columns()
            text = f"reduce_axis({x}, {self.axis}, {_kind(item)!r}){self._dim()}"
            if item.kind == "mean":
                text += f" / {columns}"
            self._give(item, [self.writer.define("r", text)])

    def _load_columns(self) -> None:
        """Load what results are computed with of each column, where threads have registers for it: on GPUs it comes
        together with the rows, not behind the barriers of the reductions."""
        config = self.config
        if not config.threads or config.block * config.lanes > _EARLY_ELEMENTS * config.threads:
            return
        for stored in self.program.stored:
            for item in walk(stored.expression) if stored.is_full else ():
                if isinstance(item, Load) and not item.guards and self.writer.is_of_column(item):
                    self.writer.write(item)

    def _dim(self) -> str:
        return self._kept_axis()

    def walk_level(self, level: int) -> list[tuple[RowReduction, list[str]]]:
        """Walk the CTA's columns for the reductions of a level; their results over these columns."""
        items = [item for item in self.program.reductions if item.level == level]
        names = {item: self._states(item) for item in items}
        start, _ = self._bounds()
        self._hoist([item.expression for item in items])
        bits = max((item.dtype.bits for item in items if item.kind == MOMENTS), default=0)

        def steps(inner: _RowWriter) -> None:
            if bits:
                inner.lines.append(f"inverse = 1.0 / ((start - {start}) // BLOCK + 1).to(tl.float{bits})")
            for item in items:
                self._step(inner, item, names[item])

        self._loop(steps)
        return [(item, self._combine_lanes(item, names[item])) for item in items]

    def _loop(self, body: Callable[[_RowWriter], None]) -> None:
        """Blocks of columns one after the other; across memory, where few other instructions hide those of masks, all
        but the last one without."""
        start, stop = self._bounds()
        if self.column_masked and not self.walk.along:
            self.lines.append(f"whole = {start} + ({stop} - {start}) // BLOCK * BLOCK")
            self.column_masked = False
            self._blocks(body, start, "whole")
            self.column_masked, start = True, "whole"
        self._blocks(body, start, stop)

    def _blocks(self, body: Callable[[_RowWriter], None], start: str, stop: str) -> None:
        inner = self.writer.forked()
        if not self.column_masked:
            inner.own_column_mask, inner.mask = "", "mask" if inner.row_mask else ""
        inner.lines += self._column(inner, "start")
        body(inner)
        self.writer.joined(inner)
        self.lines.append(f"for start in range({start}, {stop}, BLOCK):")
        self.lines += [f"    {line}" for line in inner.lines]

    def _states(self, item: RowReduction) -> list[str]:
        """Define what lanes keep of a reduction."""
        kind = f"tl.{item.dtype.name}"
        values = {MOMENTS: ["0.0", "0.0"], POWERS: ['float("-inf")', "0.0"]}.get(item.kind, [_neutral(item)])
        return [self.writer.define("s", f"tl.full({self._shape()}, {value}, {kind})") for value in values]

    def _step(self, writer: _RowWriter, item: RowReduction, states: list[str]) -> None:
        outside = {MOMENTS: "0.0", POWERS: 'float("-inf")'}.get(item.kind) or _neutral(item)
        x = self.block_of(writer, item.expression, item.dtype, outside)
        if item.kind == MOMENTS:
            inside = "column_mask" if self.column_masked else "None"
            inverse = f"inverse.to(tl.{item.dtype.name})"
            writer.lines.append(f"{', '.join(states)} = moments_step({', '.join(states)}, {x}, {inverse}, {inside})")
        elif item.kind == POWERS:
            writer.lines.append(f"{', '.join(states)} = powers_step({', '.join(states)}, {x})")
        else:
            writer.lines.append(f"{states[0]} = combine({states[0]}, {x}, {_kind(item)!r})")

    def _combine_lanes(self, item: RowReduction, states: list[str]) -> list[str]:
        """The results of all lanes together."""
        start, stop = self._bounds()
        if item.kind == MOMENTS:
            kind = f"tl.{item.dtype.name}"
            length = f"({stop} - {start})" if start != "0" else stop
            lane = "lane.to(tl.int64)" if length.isdigit() and int(length) >= 2**31 - 1 else "lane"
            count = f"tl.maximum(({length} - {lane} + BLOCK - 1) // BLOCK, 0).to({kind})"
            whole = f"1.0 / tl.maximum({self._number(length)}, 1).to({kind})"
            return self._pair("moments_of_lanes", [*states, count, whole, str(self.axis)])
        if item.kind == POWERS:
            return self._pair("powers_of_lanes", [*states, str(self.axis)])
        return [self.writer.define("r", f"reduce_axis({states[0]}, {self.axis}, {_kind(item)!r}){self._dim()}")]

    def _number(self, text: str) -> str:
        """A size as a scalar of the language, so that functions of it can be taken."""
        return f"tl.full((), {text}, tl.{'int64' if self.wide else 'int32'})" if text.isdigit() else text

    def _pair(self, function: str, arguments: Sequence[str]) -> list[str]:
        first, second = self.writer.define("r", "0"), self.writer.define("r", "0")
        del self.lines[-2:]
        self.lines.append(f"{first}, {second} = {function}({', '.join(arguments)})")
        return [first, second]

    def finish(self, item: RowReduction, results: list[str]) -> None:
        """What the graph's values are, from a reduction over all columns."""
        if item.kind == "mean":
            results = [self.writer.define("r", f"{results[0]} / {self.writer.size(self.walk.column_count)}")]
        self._give(item, results)

    def _give(self, item: RowReduction, results: list[str]) -> None:
        writer, columns = self.writer, self.writer.size(self.walk.column_count)
        for value in item.results:
            writer.give(value, results[0])
        for value, other in item.others:
            if isinstance(other, bool):
                text = f"{results[1]} / {columns}" if other else results[1]
            else:
                text = f"{results[1]} * tl.exp(finite({results[0]}) - ({writer.write(other)}))"
            writer.give(value, writer.define("r", text))

    def _hoist(self, items: Sequence[Expression]) -> None:
        """Compute what does not depend on the column in front of a loop."""
        for item in items:
            for part in _outermost(item, self.writer):
                self.writer.write(part)

    # Parts

    def store_partial(self, results: Sequence[tuple[RowReduction, list[str]]]) -> None:
        """Leave a part's results to the next launch."""
        mask = f", mask={self.writer.row_mask}" if self.writer.row_mask else ""
        for item, texts in results:
            for value, text in zip(self.partial[item], texts, strict=True):
                self.lines.append(f"tl.store({self.references.result(value)} + {self._place('part')}, {text}{mask})")

    def _place(self, part: str) -> str:
        if self.walk.along:
            return f"(row * PARTS + {part})"
        plane = "plane" if self.walk.planes else "0"
        return f"(({plane} * PARTS + {part}) * {self.writer.size(self.walk.lane_count)} + row)"

    def load_partial(self, items: Sequence[RowReduction]) -> None:
        """Put the parts of all rows together that launches before have left."""
        writer, emit = self.writer, self.lines.append
        emit(f"piece = tl.arange(0, PIECES){self._reduced_axis()}")
        emit("piece_mask = " + " & ".join(filter(None, ("(piece < PARTS)", writer.row_mask))))
        for item in items:
            outside = {MOMENTS: ["0.0", "0.0"], POWERS: ['float("-inf")', "0.0"]}.get(item.kind, [_neutral(item)])
            states = []
            for value, other in zip(self.partial[item], outside, strict=True):
                place = f"{self.references.tensor(value)} + {self._place('piece')}"
                states.append(writer.define("s", f"tl.load({place}, mask=piece_mask, other={other})"))
            self.finish(item, self._combine_pieces(item, states))

    def _combine_pieces(self, item: RowReduction, states: list[str]) -> list[str]:
        if item.kind == MOMENTS:
            kind, columns = f"tl.{item.dtype.name}", self.writer.size(self.walk.column_count)
            share = self.writer.size(self._share())
            first = f"tl.minimum(piece, PARTS){self.wide} * {share}"  # all columns lie in front of the part `PARTS`
            count = f"tl.maximum(tl.minimum({columns} - {first}, {share}), 0).to({kind})"
            whole = f"1.0 / {self._number(columns)}.to({kind})"
            return self._pair("moments_of_lanes", [*states, count, whole, str(self.axis)])
        if item.kind == POWERS:
            return self._pair("powers_of_lanes", [*states, str(self.axis)])
        return [self.writer.define("r", f"reduce_axis({states[0]}, {self.axis}, {_kind(item)!r}){self._dim()}")]

    # Results

    def store_rows(self, of_parts: bool) -> None:
        """Store what there is one of for each row; of several parts the first one does.

        Behind `store_columns`, which may read the tensor of the caller's that this updates.
        """
        writer = self.writer
        stored = [item for item in self.program.stored if not item.is_full]
        texts = [writer.stored(item.value, item.expression) for item in stored]
        conditions = [writer.row_mask] if writer.row_mask else []
        conditions += ["((row >= 0) & (part == 0))"] if of_parts else []
        mask = f", mask={' & '.join(conditions)}" if conditions else ""
        for item, text in zip(stored, texts, strict=True):
            place = f"{self.references.result(item.value)} + ({writer.index(item.index)}) + row * 0"
            value = f"tl.broadcast_to({text}, row.shape)"
            self.lines.append(f"tl.store({place}, {value}{mask})")

    def store_columns(self) -> None:
        """Store what there is of each element."""
        stored = [item for item in self.program.stored if item.is_full]
        if not stored:
            return
        if self.config.whole:
            self._store_block(self.writer, stored)
            return
        self._hoist([item.expression for item in stored])
        self._loop(lambda inner: self._store_block(inner, stored))

    def _store_block(self, writer: _RowWriter, stored: Sequence[Any]) -> None:
        texts = [writer.stored(item.value, item.expression) for item in stored]
        mask = f", mask={writer.mask}" if writer.mask else ""
        for item, text in zip(stored, texts, strict=True):
            place = f"{self.references.result(item.value)} + ({writer.index(item.index)})"
            writer.lines.append(f"tl.store({place}, {text}{mask})")

    def call(self, name: str, grid: Size, constants: dict[str, int]) -> KernelCall:
        body = "\n".join(f"    {line}" for line in self.lines)
        used = {key: value for key, value in constants.items() if key in body}
        arguments = [*self.references.operands, *(f"{constant}: tl.constexpr" for constant in used)]
        source = f"def {name}({', '.join(arguments)}):\n{body}\n"
        kernel = function_from_source(name, source, helpers=_HELPERS)
        return KernelCall(kernel, dict(self.references.operands), dict(self.references.types), dict(used),
                          (grid, 1, 1), threads=self.config.threads)  # fmt: skip


def _kind(item: RowReduction) -> str:
    return "sum" if item.kind == "mean" else item.kind


def _neutral(item: RowReduction) -> str:
    return literal(neutral_element(_kind(item), item.dtype), item.dtype)


def _outermost(item: Expression, writer: _RowWriter) -> list[Expression]:
    """The largest parts of an expression that are computed and do not depend on the column."""
    found: list[Expression] = []
    waiting, seen = [item], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if not writer.follows_column(part):
            found += [part] if isinstance(part, (ElementwiseOperation, Load)) else []
        elif isinstance(part, ElementwiseOperation):
            waiting += part.operands
    return found


def share_of(columns: Size, config: ProgramConfig) -> Size:
    """The reduced elements of a part, whole blocks."""
    return simplify(lift(ceil_divide(ceil_divide(columns, config.block), config.parts)) * config.block)


def launches(program: RowProgram, walk: Walk, config: ProgramConfig, name: str) -> tuple[list[KernelCall], list[Value]]:
    """The launches of a program, and the tensors between them."""
    strips = simplify(lift(ceil_divide(walk.lane_count, config.lanes)) * walk.plane_count)
    constants = {"LANES": config.lanes, "BLOCK": config.block, "PARTS": config.parts,
                 "PIECES": next_power_of_2(config.parts)}  # fmt: skip
    if config.parts == 1:
        launch = _LaunchWriter(program, walk, config, {})
        launch.head(1)
        if config.whole:
            launch.reduce_whole()
        else:
            for level in range(1, program.levels + 1):
                for item, results in launch.walk_level(level):
                    launch.finish(item, results)
        launch.store_columns()
        launch.store_rows(False)
        return [launch.call(name, strips, constants)], []
    partial = {item: _partial(item, walk, config.parts) for item in program.reductions}
    calls: list[KernelCall] = []
    shared = simplify(lift(strips) * config.parts)
    for level in range(1, program.levels + 1):
        launch = _LaunchWriter(program, walk, config, partial)
        launch.head(config.parts)
        launch.load_partial([item for item in program.reductions if item.level < level])
        launch.store_partial(launch.walk_level(level))
        calls.append(launch.call(f"{name}_part_{level}", shared, constants))
    full = any(item.is_full for item in program.stored)
    if not full:
        config, constants, strips = _last_config(walk, config, constants)
    launch = _LaunchWriter(program, walk, config, partial)
    launch.head(config.parts if full else 1)
    launch.load_partial(program.reductions)
    launch.store_columns()
    launch.store_rows(full)
    calls.append(launch.call(f"{name}_of_parts", shared if full else strips, constants))
    return calls, [value for values in partial.values() for value in values]


def _last_config(
    walk: Walk, config: ProgramConfig, constants: dict[str, int]
) -> tuple[ProgramConfig, dict[str, int], Size]:
    """The blocks, constants and number of CTAs of a launch that only puts parts together."""
    lanes = min(config.lanes, _LAST_LANES)
    pieces = constants["PIECES"]
    config = replace(config, lanes=lanes, threads=max(32, min(128, pieces * lanes // 8), pieces * lanes // 32))
    strips = simplify(lift(ceil_divide(walk.lane_count, lanes)) * walk.plane_count)
    return config, {**constants, "LANES": lanes}, strips


def _partial(item: RowReduction, walk: Walk, parts: int) -> list[Value]:
    """The tensors that hold what parts leave of a reduction."""
    name = (item.results or [value for value, _ in item.others])[0].name
    shape = (walk.lane_count, parts) if walk.along else (walk.plane_count, parts, walk.lane_count)
    return [Value(f"{name}.{word}", item.dtype, shape) for word in (("first", "second") if item.is_pair else ("part",))]
