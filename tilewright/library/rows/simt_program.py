"""Row programs on GPUs: blocks for rows that registers hold, for longer ones, and for few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, isqrt

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate
from tilewright.library.cost import expected
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.trace import Load, walk
from tilewright.library.makers import Maker
from tilewright.library.reduce.simt_config import LEAST_CTA_THREADS, MOST_CTA_THREADS, block_of, threads_for
from tilewright.library.reduce.simt_parts import CTAS, LONG, MANY_CTAS, MOST_ROW_PARTS
from tilewright.library.rows.program import RowProgram, row_program
from tilewright.library.rows.program_candidates import one_kernel, separate, with_failure
from tilewright.library.rows.program_text import ProgramConfig, Walk, walk_by_memory, walk_of
from tilewright.library.rows.simt_config import row_config
from tilewright.targets.base import Target

NARROWEST_LANES = 8  # rows that are neighbours in memory and worth a block across them: 16 bytes
NARROWEST_LINE = 32  # kept elements in a row of memory that are lanes by themselves
WHOLE_ROW_ELEMENTS = 32768  # elements of all tensors that a CTA holds of whole rows
WHOLE_COLUMN_ELEMENTS = 16384  # elements of all tensors that a CTA holds of whole columns
CHUNK_ELEMENTS, CHUNK_THREADS = 4096, 256  # elements of a block where there are several of them
LEAST_BLOCK = 1024  # elements of a block that are worth a smaller one, so that its addresses are simple
STRIP = 64  # lanes of such a block across rows
LEAST_STRIP = 16
MOST_PIECES = 8  # of a column that each CTA puts together, whatever their share
_LEAST_ROWS_OF_STRIP = 128  # of a strip that are worth a CTA
OTHER_THREADS_PENALTY = 1.02  # factor by which other numbers of threads are ranked lower
OTHER_PARTS_PENALTY = 1.05  # the same of the other number of parts
_STRIP_BEGIN = 12  # elements that the begin of a line in a block costs


def gpu_row_program(group: Group, graph: Graph, target: Target, candidates: Maker) -> list[Candidate]:
    """The candidates of a group of several row operations over one space: one kernel, and a kernel for each."""
    found = [separate(group, graph, target, candidates)]
    try:
        single, joined = (row_program(group, graph, pairs) for pairs in (False, True))
    except NotImplementedError as reason:
        return [with_failure(found[0], reason)]
    whole, long = walk_of(single, NARROWEST_LINE), walk_of(joined, NARROWEST_LINE)
    safe = not _reads_what_rows_update(joined, graph)
    configs = _configs((single, whole), (joined, long), target, safe) + _by_memory(single, joined, target, safe)
    return [*found, *_candidates(group, configs, target)]


def gpu_rows_by_memory(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of one row operation that reads its rows across memory: neighbouring ones in one CTA."""
    if not any(node.op == "permute" for node in group.prologue):
        return []
    try:
        single, joined = (row_program(group, graph, pairs) for pairs in (False, True))
    except NotImplementedError:
        return []
    safe = not _reads_what_rows_update(joined, graph)
    return _candidates(group, _by_memory(single, joined, target, safe), target)


def _by_memory(
    single: RowProgram, joined: RowProgram, target: Target, safe: bool
) -> list[tuple[RowProgram, Walk, ProgramConfig]]:
    """The configs of programs whose rows are neighbours in memory; `safe`: several CTAs may share a row."""
    whole, long = walk_by_memory(single, NARROWEST_LANES), walk_by_memory(joined, NARROWEST_LANES)
    if whole is None or long is None:
        return []
    return _configs((single, whole), (joined, long), target, safe)


def _configs(
    at_once: tuple[RowProgram, Walk], in_chunks: tuple[RowProgram, Walk], target: Target, safe: bool
) -> list[tuple[RowProgram, Walk, ProgramConfig]]:
    """The configs that have rows as a whole, and those that walk them."""
    configs = [(*at_once, config) for config in _whole_configs(*at_once, target)]
    long = _long_configs(*in_chunks, target, bool(configs))
    return [*configs, *((*in_chunks, config) for config in long if config.parts == 1 or safe)]


def _candidates(
    group: Group, configs: Sequence[tuple[RowProgram, Walk, ProgramConfig]], target: Target
) -> list[Candidate]:
    """Programs in their configs, and those with other numbers of threads."""
    found: list[Candidate] = []
    divided = 0
    for program, loops, config in configs:
        divided += config.parts > 1
        factor = OTHER_PARTS_PENALTY if divided > 1 else 1.0
        found.append(one_kernel(group, program, loops, config, target, factor))
        found += [
            one_kernel(group, program, loops, other, target, OTHER_THREADS_PENALTY * factor)
            for other in _others(config)
        ]
    return found


def _reads_what_rows_update(program: RowProgram, graph: Graph) -> bool:
    """Whether elements are computed from a tensor of the caller's whose new value is stored by rows: of several CTAs
    for a row one would write what others read."""
    rows = {item.value for item in program.stored if not item.is_full}
    updated = {target for target, value in graph.mutations.items() if value in rows}
    full = [part for item in program.stored if item.is_full for part in walk(item.expression)]
    return any(isinstance(part, Load) and part.value in updated for part in full)


def _whole_configs(program: RowProgram, walk: Walk, target: Target) -> list[ProgramConfig]:
    """The configs in which a CTA has all that is reduced in registers; none where that is too much."""
    columns, tensors = walk.column_count, max(1, len(program.full_loads()))
    if not isinstance(columns, int):
        return []
    processors = target.machine().processors
    if walk.along:
        if block_of(columns) * tensors > WHOLE_ROW_ELEMENTS or columns > WHOLE_ROW_ELEMENTS // 2:
            return []
        config = row_config(expected(walk.lane_count), columns, processors, tensors)
        return [ProgramConfig(config.rows, config.block, config.threads, True)]
    block, lanes = next_power_of_2(columns), expected(walk.lane_count)
    most = WHOLE_COLUMN_ELEMENTS // (block * tensors)
    if most < min(LEAST_STRIP, next_power_of_2(lanes)):
        return []
    widest = _strip(lanes, min(2 * STRIP, 1 << (most.bit_length() - 1)))
    configs = [
        ProgramConfig(width, block, threads_for(block * width * tensors, 128 // _element_bytes(program)), True)
        for width in dict.fromkeys((widest, max(min(LEAST_STRIP, next_power_of_2(lanes)), widest // 2)))
    ]
    return configs[::-1] if expected(walk.plane_count) * ceil(lanes / widest) < 2 * processors else configs


def _element_bytes(program: RowProgram) -> int:
    """Of the widest tensor with the elements of the rows.

    A thread has four vectors of 16 bytes of a block across rows on their way, of whole columns twice as many (moments
    of 64 x 15876 x 128 elements in float16: 81 us with four, 118 with two; in float32: 146 with four, 229 with eight;
    H200, 2026-12-01).
    """
    sizes = [value.dtype.itemsize for value in program.full_loads()]
    return min(4, max(2, *sizes)) if sizes else 4


def _strip(lanes: int, most: int) -> int:
    """Lanes of a block across rows: few of them without an element, and long lines of memory."""
    least = min(LEAST_STRIP, next_power_of_2(lanes))
    widths = [1 << power for power in range(least.bit_length() - 1, max(least, most).bit_length())]
    return min(widths, key=lambda width: ceil(lanes / width) * (width + _STRIP_BEGIN))


def _long_configs(program: RowProgram, walk: Walk, target: Target, in_registers: bool) -> list[ProgramConfig]:
    """The configs in which CTAs walk what is reduced: each all of it, unless registers hold that (`in_registers`), or
    several a part each."""
    columns, lanes = expected(walk.column_count), expected(walk.lane_count)
    if walk.along:
        block = min(CHUNK_ELEMENTS, max(128, next_power_of_2(columns))) if isinstance(walk.column_count, int) else 1024
        inner = walk.columns[-1].extent
        if len(walk.columns) > 1 and isinstance(inner, int) and inner % LEAST_BLOCK == 0:
            block = min(block, inner & -inner)  # a block lies in one run of neighbours
        config = ProgramConfig(1, block, max(LEAST_CTA_THREADS, min(CHUNK_THREADS, block // 8)), False)
        programs, most = lanes, columns // CHUNK_ELEMENTS
    else:
        wide = _strip(lanes, STRIP) if isinstance(walk.lane_count, int) else STRIP
        block = max(1, 2 * CHUNK_ELEMENTS // wide)
        if isinstance(walk.column_count, int):
            block = min(block, next_power_of_2(columns))
        config = ProgramConfig(wide, block, threads_for(wide * block, 64 // _element_bytes(program)), False)
        programs, most = expected(walk.plane_count) * ceil(lanes / wide), columns // _LEAST_ROWS_OF_STRIP
        if any(item.is_full for item in program.stored):  # each CTA puts all parts together before it stores its own
            numbers = sum(2 if item.is_pair else 1 for item in program.reductions)
            most = min(most, max(MOST_PIECES, isqrt(columns // (8 * numbers))))
    found = [] if in_registers else [config]
    wanted = CTAS * target.machine().processors // max(1, programs)
    counts = [min(MOST_ROW_PARTS, most, wanted * count) for count in (1, MANY_CTAS // CTAS)]
    if isinstance(walk.column_count, int):
        counts = [_even(columns, config.block, count) for count in counts]
    if columns * config.lanes >= max(counts) * LONG:
        counts.reverse()
    found += [replace(config, parts=count) for count in dict.fromkeys(counts) if count > 1]
    return found


def _even(columns: int, block: int, parts: int) -> int:
    """The number of parts that have something to do, when each has as many blocks."""
    blocks = ceil(columns / block)
    return ceil(blocks / ceil(blocks / parts)) if parts > 1 else parts


def _others(config: ProgramConfig) -> list[ProgramConfig]:
    """The config with twice and half as many threads, which the estimate cannot tell apart."""
    counts = (2 * config.threads, config.threads // 2)
    return [replace(config, threads=count) for count in counts if LEAST_CTA_THREADS <= count <= MOST_CTA_THREADS]
