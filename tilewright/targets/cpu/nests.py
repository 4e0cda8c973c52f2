"""Loop nests: code for groups of roots.

A flat cluster becomes one nest whose innermost (or, under a reduced axis, second innermost) loop runs
over vectors.  Masks of the form `index < limit` are taken out of the vector loop:

    for i in range(0, n - n % wide, wide)   no mask, `wide` lanes (several registers, for latency)
    for i in range(…, n - n % W, W)         no mask, one register
    i = n - n % W, if anything is left      the mask i + lane < n
    for i in range(…, extent, W)            only if someone needs the elements outside the mask
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from math import gcd, inf

from tilewright.dtypes import DType
from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.cpu.access import PrefixKey, masks_out, prefix_key, prefix_of
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.cut_runs import Cut, long_enough, run_length
from tilewright.targets.cpu.demand import unneeded_outside
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import ZERO, ComparisonPhase, Indices, LaneIndex
from tilewright.targets.cpu.interleaving import Interleaver, find_interleaving
from tilewright.targets.cpu.limits import Limit, PrefixMask, count_of_prefix
from tilewright.targets.cpu.memory import emit_store
from tilewright.targets.cpu.nearest_bytes import rounded_to_bytes
from tilewright.targets.cpu.placement import Placement
from tilewright.targets.cpu.reduce import ReductionLoop
from tilewright.targets.cpu.report import KernelReport
from tilewright.targets.cpu.row_masks import only_unmasked_rows
from tilewright.targets.cpu.schedule import Cluster, KernelScheduler, Partitioner, Root
from tilewright.targets.cpu.still_masks import still_masks
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.cpu.transposition import Transposer, Turn, find_turn
from tilewright.targets.cpu.wide_runs import WideRuns
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type

Bound = dict[Root, dict[int, LaneIndex]]
Accumulators = list[LLVMValue]
_LONG_BODY = 40  # simple operations of an iteration, from which on loops are not unrolled


class NestEmitter:
    """Emits the nests of one function."""

    def __init__(
        self, builder: LLVMBuilder, target: CPUTarget, placement: Placement, scheduler: KernelScheduler,
        evaluator: Evaluator, report: KernelReport,
    ) -> None:  # fmt: skip
        self.report = report
        self.builder = builder
        self.target = target
        self.placement = placement
        self.analysis: AffineAnalysis = placement.analysis
        self.scheduler = scheduler
        self.evaluator = evaluator
        self.width = target.vector_bits // 32
        self.wide_runs = WideRuns(placement.program.function, placement.analysis, self.width)
        self.cut_runs = placement.cut_runs
        self.partitioner = Partitioner(scheduler, placement.aliasing, self.width, target.l1_bytes)
        self.on_nest: Callable[[], None] = lambda: None
        self._has_versions = False  # whether the vectors of the open nest are whole by what a launch knows
        self._quick: set[Root] = set()  # reductions of the innermost loop that pass over NaN by one comparison

    def group(self, roots: Sequence[Root]) -> None:
        """Emit all roots of a group."""
        self.evaluator.reset()
        for cluster in self.partitioner.partition(roots):
            self.report.cluster(cluster)
            self._cluster(cluster, {root: {} for root in cluster.roots})

    def copy(self, root: Root, source: Storage) -> None:
        """Copy one buffer to another of the same shape."""
        assert root.value is not None
        self.evaluator.reset()
        saved = self.evaluator.storage
        self.evaluator.storage = {**saved, root.value: source}
        self._flat([root], {root: {}})
        self.evaluator.storage = saved

    # -- Clusters ---------------------------------------------------------------------------------

    def _cluster(self, cluster: Cluster, bound: Bound) -> None:
        if cluster.mode == "flat":
            self._flat(cluster.roots, bound)
            return
        position = 0 if cluster.mode == "rows" else -1
        axes = {root: _free(root, bound)[position] for root in cluster.roots}
        extent = cluster.roots[0].domain[axes[cluster.roots[0]]]
        limit = self._limit(cluster.roots, axes)
        if limit is not None and any(self._needs_outside(root, axes[root], limit) for root in cluster.roots):
            limit = None

        def body(index: LaneIndex, accumulators: Accumulators) -> Accumulators:
            inner = {root: {**bound[root], axes[root]: index} for root in cluster.roots}
            for part in cluster.inner:
                self._cluster(part, inner)
            return accumulators

        vectorised = any(index.lanes > 1 for root in cluster.roots for index in bound[root].values())
        masks = limit.compares if limit is not None else ()
        if cluster.mode == "rows" or vectorised:  # of nested columns, the outer ones are the lanes
            self.report.loop(cluster.roots, axes, extent, 1, 1, masks, False)
            self._scalar_axis(extent, limit, [], body)
        else:
            lanes = self._lanes(cluster.roots, axes, extent)
            unroll = self._unroll(cluster.roots, axes, extent, lanes, 2)
            self.report.loop(cluster.roots, axes, extent, lanes, unroll, masks, False)
            self._vector_axis(extent, lanes, unroll, limit, False, [], None, body)

    # -- Flat nests -------------------------------------------------------------------------------

    def _flat(self, roots: list[Root], bound: Bound) -> None:
        divisors = self._widened_by(roots, bound)
        if not divisors:
            self._flat_nest(roots, bound)
            return
        builder, narrow, lanes = self.builder, self.analysis, self.width
        parts = [self.evaluator.wide_scalar(value) for value in divisors]
        rest = reduce(lambda left, right: builder.binary("or", left, right), parts)
        fits = builder.compare("eq", builder.binary("and", rest, builder.integer(lanes - 1)), 0)
        wide, plain, after = (builder.new_block(f"runs.{hint}") for hint in ("wide", "plain", "end"))
        before = builder.block
        builder.branch_if(fits, wide, plain)
        for block, analysis in ((wide, self.wide_runs.analysis), (plain, narrow)):
            builder.start(block)
            self.analysis = self.evaluator.analysis = analysis
            self._has_versions = block is wide  # the other one may be cut
            with self.evaluator.scope(before):
                self._flat_nest(roots, bound)
            builder.branch(after)
        self.analysis, self._has_versions = narrow, False
        self.evaluator.analysis = narrow
        builder.start(after)

    def _widened_by(self, roots: Sequence[Root], bound: Bound) -> list[SSAValue]:
        """The divisors that a second version of a nest asks about, whose vectors have more lanes in it."""
        if self.target.quick or any(root.kind == "reduce" for root in roots):
            return []
        divisors, last = self.wide_runs.divisors, {root: len(root.domain) - 1 for root in roots}
        if any(divisor not in self.evaluator.scalars for divisor in divisors):
            return []
        if not divisors or any(axis < 0 or axis in bound[root] for root, axis in last.items()):
            return []
        narrow = self.analysis
        few = self._granularity(roots, last)
        self.analysis = self.wide_runs.analysis
        many = self._granularity(roots, last)
        self.analysis = narrow
        return divisors if 0 < few < self.width and many % self.width == 0 else []

    def _flat_nest(self, roots: list[Root], bound: Bound) -> None:
        self.on_nest()
        free = {root: _free(root, bound) for root in roots}
        count = len(free[roots[0]])
        reduced = _reduced_position(roots, free)
        vectorised = any(index.lanes > 1 for root in roots for index in bound[root].values())
        if (
            len(roots) == 1
            and not vectorised
            and count > 1
            and not self._ordered(roots)
            and self._transposed(roots[0], bound[roots[0]], free[roots[0]])
        ):
            return
        vector = None if vectorised or not count else self._vector_position(roots, free, reduced)
        order = [position for position in range(count) if position not in (vector, reduced)]
        order += [position for position in (vector, reduced) if position is not None]
        if vector is not None and count > 1 and reduced is None:
            axes = {root: free[root][vector] for root in roots}
            cuts = self._cuts(roots, axes, roots[0].domain[axes[roots[0]]])
            others = {root: set(free[root]) - {axes[root]} for root in roots}
            if cuts and not any(cut.follows(others[cut.root]) for cut in cuts):
                order.insert(0, order.pop())  # what is known of a run holds for the whole of the other axes
        self._nest(roots, bound, free, list(dict.fromkeys(order)), vector, reduced)

    def _nest(
        self, roots: list[Root], bound: Bound, free: dict[Root, list[int]], order: list[int],
        vector: int | None, reduced: int | None,
    ) -> None:  # fmt: skip
        """Loops over the remaining positions `order`; the innermost one carries the accumulators."""
        if reduced is None and not order:
            self._point(roots, bound, [])
        elif order == [vector]:
            with only_unmasked_rows(self.evaluator, roots, bound) as inside:
                self._loops(roots, inside, free, order, vector, reduced)
        else:
            self._loops(roots, bound, free, order, vector, reduced)

    def _loops(
        self, roots: list[Root], bound: Bound, free: dict[Root, list[int]], order: list[int],
        vector: int | None, reduced: int | None,
    ) -> None:  # fmt: skip
        """The outermost loop of a nest, with the others inside."""
        position = order[0]
        axes = {root: free[root][position] for root in roots}
        extent = roots[0].domain[axes[roots[0]]]
        innermost = len(order) == 1
        if position == reduced:  # the innermost loop
            self._quick = {root for root in roots if self._may_look_again(root, roots)}
        reductions = [self._reduction(root) for root in roots if root.kind == "reduce"] if position == reduced else []
        lanes = self._lanes(roots, axes, extent) if position == vector else 1

        def body(index: LaneIndex, accumulators: Accumulators) -> Accumulators:
            inner = {root: {**bound[root], axes[root]: index} for root in roots}
            if innermost:
                return self._point(roots, inner, accumulators)
            self._nest(roots, inner, free, order[1:], vector, reduced)
            return accumulators

        limit = self._limit(roots, axes)
        rest = limit is not None and self._anyone_needs_outside(roots, axes, limit)
        if position == vector and lanes > 1 and not rest:
            limit = self._ended_by_still_masks(roots, axes, extent, limit)
        unroll = self._unroll(roots, axes, extent, lanes, 4) if position == vector else 1
        self.report.loop(roots, axes, extent, lanes, unroll, limit.compares if limit is not None else (), rest)
        if position == vector:
            cuts = [] if reductions or lanes == 1 else self._cuts(roots, axes, extent)

            def plain() -> Accumulators:
                registers = 1 if cuts else unroll  # seldom run where there are cuts
                return self._reduced_vector(reductions, extent, lanes, registers, limit, rest, body)

            results = self._cut_or_plain(cuts, roots, bound, axes, None if rest else limit, body, plain)

            def again(found: Accumulators, look: Callable[[LaneIndex, Accumulators], Accumulators]) -> Accumulators:
                return self._vector_axis(extent, lanes, 1, limit, rest, found, None, look)
        else:
            width = max((index.lanes for root in roots for index in bound[root].values()), default=1)
            initial = [value for reduction in reductions for value in reduction.start(width)]
            end = None if rest else limit
            results = self._scalar_axis(extent, end, initial, body)

            def again(found: Accumulators, look: Callable[[LaneIndex, Accumulators], Accumulators]) -> Accumulators:
                return self._scalar_axis(extent, end, found, look)

        results = self._look_again(reductions, results, bound, lanes, again)
        ends = bool(reductions) and limit is not None and not rest
        left_out = self.builder.compare("slt", limit.count, extent) if ends and limit is not None else None
        self._finish(roots, bound, reductions, results, left_out)

    def _transposed(self, root: Root, bound: dict[int, LaneIndex], axes: list[int]) -> bool:
        """Emit a root through transposed tiles, or interleaved vectors, if it reads along one axis and writes along
        another."""
        turn = find_turn(self.analysis, root, axes, self.width)
        found = turn or find_interleaving(self.analysis, root, axes, self.width)
        if found is None:
            return False
        if turn is not None:
            self.report.transposed(root, turn.read_axis, turn.written_axis, turn.side)
        else:
            self.report.interleaved(root, found.read_axis, found.written_axis, root.domain[found.written_axis])
        others = [axis for axis in axes if axis not in (found.read_axis, found.written_axis)]

        def body(places: dict[int, LaneIndex], remaining: list[int]) -> None:
            if not remaining:
                read = self._end(root, found.read_axis)
                if isinstance(found, Turn):
                    Transposer(self.evaluator, root, found, read, self._end(root, found.written_axis)).emit(places)
                else:
                    Interleaver(self.evaluator, root, found, self.width, *read).emit(places)
                return

            def inner(index: LaneIndex, accumulators: Accumulators) -> Accumulators:
                body({**places, remaining[0]: index}, remaining[1:])
                return accumulators

            self._scalar_axis(root.domain[remaining[0]], None, [], inner)

        body(bound, others)
        return True

    def _end(self, root: Root, axis: int) -> tuple[LLVMValue, ComparisonPhase | None]:
        """How many leading elements of an axis must be computed, and what is known of comparisons for these."""
        limit = self._limit([root], {root: axis})
        if limit is None or self._needs_outside(root, axis, limit):
            return self.builder.integer(root.domain[axis]), None
        return limit.count, ComparisonPhase("inside", limit.compares)

    def _reduced_vector(
        self, reductions: list[ReductionLoop], extent: int, lanes: int, unroll: int, limit: Limit | None, rest: bool,
        body: Callable[[LaneIndex, Accumulators], Accumulators],
    ) -> Accumulators:  # fmt: skip
        """A vectorised axis; the accumulators are folded to one lane at the end."""

        def start(width: int) -> Accumulators:
            return [value for reduction in reductions for value in reduction.start(width)]

        def fold(values: Accumulators, width: int) -> Accumulators:
            folded: Accumulators = []
            for reduction in reductions:
                own_values, values = values[: reduction.count], values[reduction.count :]
                folded += reduction.fold(own_values, width)
            return folded

        if not reductions:
            return self._vector_axis(extent, lanes, unroll, limit, rest, [], None, body)
        wide = self._vector_axis(extent, lanes, unroll, limit, rest, start(lanes * unroll), fold, body)
        return fold(wide, 1)

    def _may_look_again(self, root: Root, roots: Sequence[Root]) -> bool:
        """Whether a loop over `roots` leaves what a reduction among them has read as it was."""
        if root.kind != "reduce":
            return False
        storage = self.evaluator.storage
        for other in roots:
            if other.kind == "store":
                return False
            if other.kind == "buffer" and any(
                value is not other.value and storage.get(value) is other.storage for value, _ in root.reads.buffers
            ):
                return False
        return True

    def _look_again(
        self, reductions: list[ReductionLoop], values: Accumulators, bound: Bound, lanes: int,
        again: Callable[[Accumulators, Callable[[LaneIndex, Accumulators], Accumulators]], Accumulators],
    ) -> Accumulators:  # fmt: skip
        """Where a quick minimum or maximum is what it began with: NaN, if all elements are.

        `again` emits the reduced axis, with steps of `lanes`, once more.
        """
        results: Accumulators = []
        for reduction in reductions:
            own_values, values = values[: reduction.count], values[reduction.count :]
            if reduction.quick:
                own_values = [self._number_or_nan(reduction, own_values[0], bound[reduction.root], lanes, again)]
            results += own_values
        return results

    def _number_or_nan(
        self, reduction: ReductionLoop, value: LLVMValue, bound: dict[int, LaneIndex], lanes: int,
        again: Callable[[Accumulators, Callable[[LaneIndex, Accumulators], Accumulators]], Accumulators],
    ) -> LLVMValue:  # fmt: skip
        builder, root = self.builder, reduction.root

        def look(index: LaneIndex, found: Accumulators) -> Accumulators:
            indices = tuple(index if axis == root.reduced_axis else bound[axis] for axis in range(len(root.domain)))
            return [reduction.numbers(found[0], indices)]

        infinite = builder.compare("oeq", value, builder.splat(reduction.identity, value.lanes))
        doubtful = builder.cast("zext", self._any(infinite), "i64")
        with self._loop(builder.integer(0), doubtful, 1, [value]) as (_, (carried,), following):  # at most once
            (found,) = again([builder.constant(vector_type("i1", max(lanes, value.lanes)), False)], look)
            some = found if value.is_vector else self._any(found)
            following.append(builder.select(some, carried, builder.splat(reduction.not_a_number, value.lanes)))
        return following[0]

    def _any(self, mask: LLVMValue) -> LLVMValue:
        return self.builder.intrinsic("vector.reduce.or", [mask], "i1") if mask.is_vector else mask

    def _finish(
        self, roots: list[Root], bound: Bound, reductions: list[ReductionLoop], values: Accumulators,
        left_out: LLVMValue | None,
    ) -> None:  # fmt: skip
        """Deliver the results of reductions; `left_out` tells whether their loop ended at a limit."""
        for reduction in reductions:
            own_values, values = values[: reduction.count], values[reduction.count :]
            root = reduction.root
            axes = [axis for axis in range(len(root.domain)) if axis != root.reduced_axis]
            for result, value in zip(root.operation.results, reduction.results(own_values, left_out), strict=True):
                if result.type.is_scalar:
                    self.evaluator.scalars[result] = value
                    continue
                indices = tuple(bound[root][axis] for axis in axes)
                self.evaluator.write(self.scheduler.storage[result], indices, value)
                self.evaluator.remember(result, indices, value)

    def _point(self, roots: list[Root], bound: Bound, accumulators: Accumulators) -> Accumulators:
        """The body of a nest: every root at one element or vector."""
        updated: Accumulators = []
        for root in roots:
            indices: Indices = tuple(bound[root][axis] for axis in range(len(root.domain)))
            if root.kind == "store":
                emit_store(self.evaluator, root.operation, indices)
            elif root.kind == "buffer":
                self._buffer(root, indices)
            else:
                reduction = self._reduction(root)
                own_values, accumulators = accumulators[: reduction.count], accumulators[reduction.count :]
                updated += reduction.step(own_values, indices)
        return updated

    def _buffer(self, root: Root, indices: Indices) -> None:
        assert root.value is not None and root.storage is not None
        evaluator = self.evaluator
        own = evaluator.storage.get(root.value) is root.storage
        if own:
            evaluator.through = root.value
        value = evaluator.evaluate(root.value, indices)
        evaluator.through = None
        evaluator.write(root.storage, indices, value)
        if own:
            evaluator.remember(root.value, indices, value)

    def _reduction(self, root: Root) -> ReductionLoop:
        return ReductionLoop(self.evaluator, root, quick=root in self._quick)

    # -- Loops ------------------------------------------------------------------------------------

    @contextmanager
    def _loop(
        self, lower: LLVMValue, upper: LLVMValue, step: int, carried: Accumulators
    ) -> Iterator[tuple[LLVMValue, list[LLVMValue], Accumulators]]:
        """A loop with a scope; yields (index, carried values, a list to be filled with the next values)."""
        results: Accumulators = []
        with self.builder.loop(lower, upper, step, carried) as loop:
            with self.evaluator.scope(loop.guard, loop.index, *loop.values):
                yield loop.index, loop.values, results
            loop.next(results)
        results[:] = loop.results

    def _scalar_axis(
        self, extent: int, limit: Limit | None, carried: Accumulators,
        body: Callable[[LaneIndex, Accumulators], Accumulators],
    ) -> Accumulators:  # fmt: skip
        builder = self.builder
        phase = ComparisonPhase("inside", limit.compares) if limit is not None else None
        if extent == 1 and limit is None:
            return body(ZERO, carried)
        upper = limit.count if limit is not None else builder.integer(extent)
        with self._loop(builder.integer(0), upper, 1, carried) as (index, values, following):
            following += body(LaneIndex(index, 1, phase), values)
        return following

    def _vector_axis(
        self, extent: int, lanes: int, unroll: int, limit: Limit | None, rest: bool, carried: Accumulators,
        fold: Callable[[Accumulators, int], Accumulators] | None,
        body: Callable[[LaneIndex, Accumulators], Accumulators],
    ) -> Accumulators:  # fmt: skip
        """Vectors over an axis; see the module. `fold(values, lanes)` narrows accumulators to fewer lanes."""
        if lanes == 1:
            return self._scalar_axis(extent, None if rest else limit, carried, body)
        if limit is not None:
            return self._limited_axis(extent, lanes, unroll, limit, rest, carried, fold, body)
        wide = lanes * unroll
        values = self._whole_vectors(0, extent // wide * wide, wide, carried, body)
        if fold is not None:
            values = fold(values, lanes)
        values = self._whole_vectors(extent // wide * wide, extent // lanes * lanes, lanes, values, body)
        left = extent % lanes
        if left:
            mask = self.builder.lane_mask(self.builder.integer(left), lanes)
            base = self.builder.integer(extent - left)
            values = body(LaneIndex(base, lanes, None, mask), values)
        return values

    def _whole_vectors(
        self, start: int, end: int, lanes: int, carried: Accumulators,
        body: Callable[[LaneIndex, Accumulators], Accumulators],
    ) -> Accumulators:  # fmt: skip
        if end - start <= lanes:
            return body(LaneIndex(self.builder.integer(start), lanes), carried) if end > start else carried
        bounds = self.builder.integer(start), self.builder.integer(end)
        with self._loop(*bounds, lanes, carried) as (index, values, following):
            following += body(LaneIndex(index, lanes), values)
        return following

    def _limited_axis(
        self, extent: int, lanes: int, unroll: int, limit: Limit, rest: bool, carried: Accumulators,
        fold: Callable[[Accumulators, int], Accumulators] | None,
        body: Callable[[LaneIndex, Accumulators], Accumulators],
    ) -> Accumulators:  # fmt: skip
        builder, count = self.builder, limit.count
        inside = ComparisonPhase("inside", limit.compares)

        def below(multiple: int) -> LLVMValue:
            return builder.binary("and", count, builder.integer(-multiple))

        start, values = builder.integer(0), carried
        for width in dict.fromkeys((lanes * unroll, lanes)):
            if width == lanes and fold is not None:
                values = fold(values, lanes)
            end = below(width)
            with self._loop(start, end, width, values) as (index, inner, following):
                following += body(LaneIndex(index, width, inside), inner)
            start, values = end, following
        with self._loop(start, count, lanes, values) as (index, inner, following):
            mask = builder.lane_mask(builder.subtract(count, index), lanes)
            exists = (
                builder.lane_mask(builder.subtract(builder.integer(extent), index), lanes) if extent % lanes else None
            )
            if not rest:
                exists = mask
            self._know(mask, exists)
            following += body(LaneIndex(index, lanes, ComparisonPhase("partial", limit.compares, mask), exists), inner)
        values = following
        return self._outside(extent, lanes, limit, values, body) if rest else values

    def _outside(
        self, extent: int, lanes: int, limit: Limit, carried: Accumulators,
        body: Callable[[LaneIndex, Accumulators], Accumulators],
    ) -> Accumulators:  # fmt: skip
        builder = self.builder
        start = builder.binary("and", builder.add(limit.count, lanes - 1), builder.integer(-lanes))
        with self._loop(start, builder.integer(extent), lanes, carried) as (index, inner, following):
            exists = (
                builder.lane_mask(builder.subtract(builder.integer(extent), index), lanes) if extent % lanes else None
            )
            self._know(exists)
            following += body(LaneIndex(index, lanes, ComparisonPhase("outside", limit.compares), exists), inner)
        return following

    def _know(self, *masks: LLVMValue | None) -> None:
        """Masks computed in the loop that is open: what depends on them cannot be hoisted out of it."""
        for mask in masks:
            if mask is not None:
                self.evaluator.know(mask)

    # -- Runs between multiples of divisors -------------------------------------------------------

    def _cuts(self, roots: list[Root], axes: dict[Root, int], extent: int) -> list[Cut]:
        """Where a loop over vectors is cut."""
        if self.target.quick or self._has_versions or extent < 2 * self.width:
            return []
        cuts = self.cut_runs.cuts(roots, axes, self.analysis)
        known = self.evaluator.scalars
        return cuts if all(cut.scalar is None or cut.scalar in known for cut in cuts) else []

    def _cut_or_plain(
        self, cuts: list[Cut], roots: list[Root], bound: Bound, axes: dict[Root, int], limit: Limit | None,
        body: Callable[[LaneIndex, Accumulators], Accumulators], plain: Callable[[], Accumulators],
    ) -> Accumulators:  # fmt: skip
        """A loop over vectors in runs, where there are cuts and the launch's runs are long enough."""
        if not cuts:
            return plain()
        builder = self.builder
        fits = long_enough(self.evaluator, cuts)
        if fits is None:
            self._in_runs(cuts, roots, bound, axes, limit, body)
            return []
        long, short, after = (builder.new_block(f"cut.{hint}") for hint in ("long", "short", "end"))
        before = builder.block
        builder.branch_if(fits, long, short)
        builder.start(long)
        with self.evaluator.scope(before):
            self._in_runs(cuts, roots, bound, axes, limit, body)
        builder.branch(after)
        builder.start(short)
        with self.evaluator.scope(before):
            plain()
        builder.branch(after)
        builder.start(after)
        return []

    def _in_runs(
        self, cuts: list[Cut], roots: list[Root], bound: Bound, axes: dict[Root, int], limit: Limit | None,
        body: Callable[[LaneIndex, Accumulators], Accumulators],
    ) -> None:  # fmt: skip
        """Runs one after the other: whole vectors, and a masked one."""
        builder, evaluator, narrow = self.builder, self.evaluator, self.analysis
        assert self.cut_runs.analysis is not None
        extent = roots[0].domain[axes[roots[0]]]
        upper = builder.integer(extent) if limit is None else limit.count
        phase = None if limit is None else ComparisonPhase("inside", limit.compares)
        self.analysis = evaluator.analysis = self.cut_runs.analysis
        evaluator.unwritten = frozenset(
            root.value for root in roots if root.kind == "buffer" and root.value is not None
        )
        lanes = self._lanes(roots, axes, extent)
        self.analysis = narrow  # of other axes
        step = builder.reserve("i64")
        with builder.loop(builder.integer(0), upper, step) as loop:
            with evaluator.scope(loop.guard, loop.index):
                start = LaneIndex(loop.index)
                places = {root: {**bound[root], axes[root]: start} for root in roots}
                with evaluator.without(evaluator.unwritten):
                    length = run_length(evaluator, cuts, places)
                stop = builder.minimum(builder.add(loop.index, length), upper)
                count = builder.subtract(stop, loop.index)
                whole = builder.add(loop.index, builder.binary("and", count, builder.integer(-lanes)))
                self._know(stop, whole)
                with self._loop(loop.index, whole, lanes, []) as (index, _, _):
                    body(LaneIndex(index, lanes, phase, None, start), [])
                with self._loop(whole, stop, lanes, []) as (index, _, _):
                    mask = builder.lane_mask(builder.subtract(stop, index), lanes)
                    self._know(mask)
                    body(LaneIndex(index, lanes, phase, mask, start), [])
                builder.line(f"{step.text} = add i64 {length.text}, 0")  # was reserved in front of the loop
            loop.next([])
        evaluator.analysis, evaluator.unwritten = narrow, frozenset()

    # -- Choices ----------------------------------------------------------------------------------

    def _vector_position(self, roots: list[Root], free: dict[Root, list[int]], reduced: int | None) -> int | None:
        """The position whose vectors make most accesses contiguous; later positions win ties.

        Stores whose elements meet keep row-major order: their vectors run along the last axis.
        """
        count, own = len(free[roots[0]]), roots[0]
        extents = [own.domain[free[own][position]] for position in range(count)]
        # What is computed gains more than loads one by one cost, where there is much of it: a search in a table.
        least = -1.0 if self._body_cost(roots) > _LONG_BODY else -inf
        scores = [(0.0, -1)]
        for position in range(count - 1 if self._ordered(roots) else 0, count):
            if extents[position] > 1:
                contiguity = sum(max(least, self._contiguity(root, free[root][position])) for root in roots)
                scores.append((1 + min(extents[position], self.width) / self.width + contiguity, position))
        best = max(scores)[1]
        return None if best < 0 else best

    def _ordered(self, roots: Sequence[Root]) -> bool:
        aliasing = self.placement.aliasing
        return any(root.kind == "store" and aliasing.ordered(root.operation) for root in roots)

    def _contiguity(self, root: Root, axis: int) -> float:
        score = 0.0
        for load, axes in root.reads.loads:
            score += self._step_score(load.operands[0], axes, axis)
        for value, axes in root.reads.buffers:
            if axis in axes:
                score += 2 if self.evaluator.storage[value].strides[axes.index(axis)] == 1 else -2
        if root.kind == "store":
            score += 2 * self._step_score(root.operation.operands[0], tuple(range(len(root.domain))), axis)
        elif root.kind == "buffer":
            score += 3 if root.storage is not None and root.storage.strides[axis] == 1 else -3
        return score

    def _step_score(self, pointer: SSAValue, axes: tuple[int, ...], axis: int) -> float:
        if axis not in axes:
            return 0.0
        place, in_runs = axes.index(axis), self.cut_runs.analysis
        step = self.analysis.along(pointer, place).step
        if step is None and in_runs is not None:
            step = in_runs.along(pointer, place).step
        return {1: 2.0, -1: 1.5, 0: 0.5}.get(step, -2.0) if step is not None else -2.0

    def _lanes(self, roots: Sequence[Root], axes: dict[Root, int], extent: int) -> int:
        """Lanes of one vector register for the widest type that the roots write."""
        if extent == 1:
            return 1
        widest = 4
        for root in roots:
            for value in root.operation.operands if root.value is None else [root.value]:
                if isinstance(value.type.element, DType) and value.type.dtype.is_float:
                    widest = max(widest, value.type.element.itemsize)
        granularity = self._granularity(roots, axes)
        lanes = min(self.target.vector_bits // (8 * widest), 1 << (extent - 1).bit_length())
        while granularity % lanes and lanes > 4:
            lanes //= 2
        return lanes

    def _granularity(self, roots: Sequence[Root], axes: dict[Root, int]) -> int:
        """Vectors whose lanes divide this number find consecutive elements consecutive; 0 when all do."""
        granularity = 0
        for root in roots:
            accesses = [
                (load.operands[0], mapping.index(axes[root]))
                for load, mapping in root.reads.loads
                if axes[root] in mapping
            ]
            if root.kind == "store":
                accesses.append((root.operation.operands[0], axes[root]))
            facts = [self.analysis.along(pointer, axis) for pointer, axis in accesses]
            runs = [fact.run for fact in facts if fact.step in (0, 1)]
            granularity = gcd(granularity, *runs, *root.reads.reshaped_along(axes[root]))
        return granularity

    def _packs_bytes(self, roots: Sequence[Root]) -> bool:
        """Whether four registers become one of bytes."""
        stores = [root.operation.operands[1].definition for root in roots if root.kind == "store"]
        return self.target.rounds_to_bytes and any(
            value is not None and rounded_to_bytes(value, self.scheduler.storage) is not None for value in stores
        )

    def _unroll(self, roots: Sequence[Root], axes: dict[Root, int], extent: int, lanes: int, most: int) -> int:
        """How many registers the main loop takes at once: more for cheap bodies, to hide latency."""
        if lanes == 1 or any(root.reads.reshaped_along(axes[root]) for root in roots):
            return 1
        cost = self._body_cost(roots)
        unroll = most if cost <= 4 * len(roots) or self._packs_bytes(roots) else min(2, most)
        if cost > _LONG_BODY and extent > lanes * unroll:  # without a loop, LLVM keeps what it carries in registers
            unroll = 1
        granularity = self._granularity(roots, axes)
        regular = granularity % lanes == 0
        while unroll > 1 and (extent < lanes * unroll or (regular and granularity % (lanes * unroll))):
            unroll //= 2
        return unroll

    def _body_cost(self, roots: Sequence[Root]) -> float:
        """What one iteration computes, in simple operations."""
        inputs = [(root, [root.value] if root.value is not None else root.operation.operands) for root in roots]
        return sum(self._cost(value, root) for root, values in inputs for value in values)

    def _cost(self, value: SSAValue, root: Root) -> float:
        own = value is root.value and value in self.placement.stored and value.definition is not None
        if own and root.kind == "buffer" and root.operation is value.definition:
            return self.placement.computation_cost(value)
        return self.placement.cost(value)

    def _limit(self, roots: Sequence[Root], axes: dict[Root, int]) -> Limit | None:
        """The prefix mask along an axis that most roots have; if there are masks after which no root needs anything, of
        these."""
        found: dict[PrefixKey, dict[SSAValue, int]] = {}
        votes: dict[PrefixKey, int] = {}
        for root in roots:
            for compare, mapping in root.reads.compares:
                prefix, key = prefix_of(compare, self.analysis), prefix_key(compare)
                if prefix is None or key is None or mapping[prefix.axis] != axes[root]:
                    continue
                found.setdefault(key, {})[compare] = prefix.axis
                votes[key] = votes.get(key, 0) + 1
        if not found:
            return None
        ending = [key for key in found if not self._anyone_needs_outside(roots, axes, PrefixMask(key, found[key]))]
        key = max(ending or found, key=lambda item: votes[item])
        prefix = prefix_of(next(iter(found[key])), self.analysis)
        assert prefix is not None
        extent = roots[0].domain[axes[roots[0]]]
        count = count_of_prefix(self.evaluator, prefix.index, prefix.limit, prefix.inclusive, extent)
        return Limit(key, found[key], count)

    def _ended_by_still_masks(
        self, roots: Sequence[Root], axes: dict[Root, int], extent: int, limit: Limit | None
    ) -> Limit | None:
        """The limit, which is zero where a mask does not hold that is one number, and after which no root needs any."""
        program, builder, evaluator = self.placement.program, self.builder, self.evaluator
        found = {mask.value: mask for root in roots for mask in still_masks(root, axes[root], program, self.analysis)}
        for key in {key: None for mask in found.values() for key in mask.keys}:
            compares = {value: mask.axis for value, mask in found.items() if key in mask.keys}
            if self._anyone_needs_outside(roots, axes, PrefixMask(key, compares)):
                found = {value: mask for value, mask in found.items() if key not in mask.keys}
        if not found:
            return limit
        parts = [evaluator.evaluate(mask, tuple(ZERO for _ in mask.type.shape)) for mask in found]
        parts = list({part.text: part for part in parts}.values())
        holds = evaluator.emit_at(parts, lambda: evaluator.all_of(parts, 1))
        count = builder.integer(extent) if limit is None else limit.count
        count = evaluator.emit_at([holds, count], lambda: builder.select(holds, count, builder.integer(0)))
        known = {value: mask.axis for value, mask in found.items()}
        key = next(iter(next(iter(found.values())).keys)) if limit is None else limit.key
        return Limit(key, {**(limit.compares if limit is not None else {}), **known}, count)

    def _anyone_needs_outside(self, roots: Sequence[Root], axes: dict[Root, int], limit: PrefixMask) -> bool:
        """Whether a loop of a nest must go beyond the limit.

        A block that is written and summed up in the same loop is not wanted there by the sum, if that can do without.
        """
        limited = frozenset(
            root.operation
            for root in roots
            if root.kind == "reduce"
            and axes[root] == root.reduced_axis
            and self._reduction(root).is_neutral_outside(frozenset(limit.compares))
        )
        return any(self._needs_outside(root, axes[root], limit, limited) for root in roots)

    def _needs_outside(
        self, root: Root, axis: int, limit: PrefixMask, limited: frozenset[Operation] = frozenset()
    ) -> bool:
        if root.kind == "store":
            operands = root.operation.operands
            return len(operands) < 3 or not masks_out(operands[2], axis, limit.key, self.analysis)
        program = self.placement.program
        if root.kind == "buffer":
            assert root.value is not None
            return not unneeded_outside(program, self.analysis, root.value, axis, limit.key, limited)
        if axis == root.reduced_axis:
            return not self._reduction(root).is_neutral_outside(frozenset(limit.compares))
        result_axis = axis - int(root.reduced_axis is not None and root.reduced_axis < axis)
        results = root.operation.results
        return not all(unneeded_outside(program, self.analysis, result, result_axis, limit.key) for result in results)


def _free(root: Root, bound: Bound) -> list[int]:
    return [axis for axis in range(len(root.domain)) if axis not in bound[root]]


def _reduced_position(roots: Sequence[Root], free: dict[Root, list[int]]) -> int | None:
    for root in roots:
        if root.kind == "reduce" and root.reduced_axis in free[root]:
            return free[root].index(root.reduced_axis)
    return None
