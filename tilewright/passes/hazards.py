"""`check_hazards`: checks an explicit kernel's synchronisation before it runs.

Checks only say no when they are sure: a kernel passes whose barriers might fit.  What depends on the order in which
things happen is for the interpreter (`ir.asynchrony`).

    places       constant indices, slices and parities are inside of what they choose from
    structure    allocations and roles are at the top level; an elected role does what one thread can do; nothing that
                 warps do together depends on one warp's vote
    budgets      registers of all roles, threads, shared memory
    arrivals     the warps that arrive at a barrier can add up to its count
    bytes        what a barrier expects can be brought by the copies that complete on it
    numbered     barriers with numbers: all uses agree on the threads, and these are of the roles that come
    release      a stage is not released while the last product that reads it may be in flight
    loads        a `shared_wait` ends loads before what lets others write where they read (`passes.load_waits`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tilewright.errors import CompilationError
from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.diagnostics import render, user_place
from tilewright.ir.explicit import GREATEST_CTA_THREADS, is_explicit, slice_unit, tile_bytes
from tilewright.ir.rewrite import constant_of
from tilewright.ir.types import BarrierType, SharedType
from tilewright.passes.load_waits import unended_loads

GREATEST_NUMBER = 7  # of a numbered barrier; the others are the compiler's
_ONE_THREAD = frozenset(
    "shared_alloc shared_index shared_slice shared_transpose shared_tile barrier_index barrier_arrive barrier_expect "
    "barrier_wait fence_async tma_load tma_store tma_commit tma_wait prefetch tma_prefetch cluster_rank cluster_arrive "
    "cluster_wait grid_wait grid_launch_dependents".split()
)
_CLUSTER = frozenset(("cluster_arrive", "cluster_wait"))
_TOGETHER = frozenset("wgmma wgmma_wait group_sync named_sync named_arrive barrier_arrive".split()) | _CLUSTER


@dataclass(frozen=True)
class CtaLimits:
    """What a CTA may have on a target: registers of all its threads, bytes of shared memory, and threads."""

    warp_threads: int  # of a warp
    registers: int
    shared_bytes: int
    threads: int = GREATEST_CTA_THREADS


@dataclass(frozen=True, eq=False)
class RoleThreads:
    """Threads that run one region: a role, or the kernel outside of roles."""

    region: Region
    name: str
    warps: int
    copies: int
    elected: bool
    copy: SSAValue | None

    @property
    def arrivals(self) -> int:
        """Arrivals that one `barrier_arrive` of a copy counts."""
        return 1 if self.elected else self.warps


def check_hazards(function: Function, limits: CtaLimits, warps: int = 4) -> None:
    """Raise `CompilationError`, at the user's line, for an explicit kernel that cannot work.

    `limits` are the target's, `warps` are those of a CTA: of all roles together, or of a kernel without roles.
    """
    if any(is_explicit(operation.opcode) for operation in function.walk()):
        _HazardCheck(function, limits, warps).run()


class _HazardCheck:
    def __init__(self, function: Function, limits: CtaLimits, warps: int) -> None:
        self.function, self.limits = function, limits
        self.roles = list(_roles(function, warps))
        self.sites = [(role, operation) for role in self.roles for operation in _walk(role)]

    def run(self) -> None:
        self.structure()
        self.places()
        self.budgets()
        for operation in self.function.region.operations:
            if operation.opcode == "barrier_alloc":
                self.arrivals(operation)
                self.bytes(operation)
        self.numbered()
        for role in self.roles:
            self.releases(role.region, [])
        self.loads()

    @staticmethod
    def fail(operation: Operation, message: str, advice: str) -> CompilationError:
        location = user_place(operation.location)
        text = f"{message}\n  help: {advice}"
        if location is not None:
            text = render(message, location, location.width, advice)
        error = CompilationError(text)
        error.message, error.location, error.advice = message, location, advice
        return error

    # Structure and budgets

    def structure(self) -> None:
        top = self.function.region.operations
        for operation in self.function.walk():
            if operation.opcode in ("shared_alloc", "barrier_alloc", "warp_roles") and operation not in top:
                subject = {"warp_roles": "roles", "barrier_alloc": "barriers"}.get(operation.opcode, "shared memory")
                raise self.fail(
                    operation, f"{subject} inside a loop, branch or role", "write it at the top level of the kernel"
                )
        several = [operation for operation in top if operation.opcode == "warp_roles"]
        if len(several) > 1:
            raise self.fail(several[1], "the warps are shared out twice", "one tx.warp_roles with all roles")
        for role in self.roles:
            if role.elected:
                self.one_thread(role)
        for operation in self.function.walk():
            if operation.opcode in ("if", "for"):
                self.vote(operation)

    def places(self) -> None:
        for operation in self.function.walk():
            opcode = operation.opcode
            if opcode not in ("shared_index", "barrier_index", "shared_slice", "barrier_wait"):
                continue
            number, kind = constant_of(operation.operands[1]), operation.operands[0].type.handle
            if not isinstance(number, int):
                continue
            if opcode == "barrier_wait" and number not in (0, 1):
                advice = "keep it with ring_position, or & 1"
                raise self.fail(operation, f"the parity of a phase is 0 or 1, not {number}", advice)
            if opcode == "shared_slice":
                self.part(operation, number)
            elif isinstance(kind, SharedType | BarrierType) and opcode != "barrier_wait":
                count = kind.shape[0] if isinstance(kind, SharedType) else kind.count or 0
                elements = "tiles" if isinstance(kind, SharedType) else "barriers"
                if not 0 <= number < count:
                    raise self.fail(operation, f"index {number} is outside of {count} {elements}", "they count from 0")

    def part(self, operation: Operation, start: int) -> None:
        """A slice from a constant start on."""
        axis, extent, kind = (
            operation.attributes["axis"],
            operation.attributes["extent"],
            operation.operands[0].type.handle,
        )
        assert isinstance(axis, int) and isinstance(extent, int) and isinstance(kind, SharedType)
        unit = slice_unit(kind, axis)
        if start < 0 or start + extent > kind.shape[axis]:
            raise self.fail(
                operation,
                f"the slice {start}:{start + extent} is outside of {kind.shape[axis]} along axis {axis}",
                "start + extent is at most the extent of the tile",
            )
        if start % unit:
            raise self.fail(
                operation,
                f"the slice starts at {start}, which is no multiple of {unit}",
                "parts of a swizzled tile begin at whole rows of its swizzle, or at multiples of 8 rows",
            )

    def vote(self, branch: Operation) -> None:
        """Warps may differ about a vote: what they all have to do does not come after it."""
        if any(_is_voted(value) for value in branch.operands[: 3 if branch.opcode == "for" else 1]):
            for operation in branch.walk():
                if operation.opcode in _TOGETHER:
                    message = f"{operation.opcode} depends on a vote that each warp takes for itself"
                    raise self.fail(operation, message, "do it before or after the branch, in all warps")

    def one_thread(self, role: RoleThreads) -> None:
        for operation in _walk(role):
            if is_explicit(operation.opcode) and operation.opcode not in _ONE_THREAD:
                raise self.fail(
                    operation,
                    f"{operation.opcode} in '{role.name}', an elected role: it is one thread",
                    "drop elected=True, or leave this to another role",
                )
            if operation.opcode in _CLUSTER and operation not in role.region.operations:
                raise self.fail(
                    operation,
                    f"{operation.opcode} inside a loop or branch of '{role.name}', an elected role",
                    "all threads of the role take part in it: move it to the end of the role",
                )
        opcodes = [operation.opcode for operation in role.region.operations[:-1]]
        if _CLUSTER & set(opcodes):
            first = min(opcodes.index(opcode) for opcode in _CLUSTER if opcode in opcodes)
            for operation in role.region.operations[first:-1]:
                if operation.opcode not in _CLUSTER:
                    raise self.fail(
                        operation,
                        f"'{role.name}' is an elected role and goes on after its cluster barrier",
                        "the cluster barrier, which all threads take part in, ends an elected role",
                    )

    def budgets(self) -> None:
        for operation in self.function.region.operations:
            if operation.opcode == "warp_roles":
                self.registers(operation)
        memory: dict[Operation, int] = {}
        last = None
        for operation in self.function.region.operations:
            if operation.opcode == "shared_alloc":
                kind = operation.results[0].type.handle
                assert isinstance(kind, SharedType)
                base = _origin(operation.results[0])
                memory[base] = max(memory.get(base, 0), tile_bytes(kind))
                last = operation
        total = sum(memory.values())
        if last is not None and total > self.limits.shared_bytes:
            raise self.fail(
                last, f"the kernel needs {total} bytes of shared memory, a CTA may have {self.limits.shared_bytes}",
                "fewer stages, smaller tiles, or tx.shared(…, over=…) for tiles that are not used at the same time",
            )  # fmt: skip

    def registers(self, operation: Operation) -> None:
        attributes: Any = operation.attributes
        threads, most = self.threads, self.limits.registers
        if threads > self.limits.threads:
            raise self.fail(
                operation, f"the roles have {threads} threads, a CTA has at most {self.limits.threads}",
                "fewer copies or warps",
            )  # fmt: skip
        share = most // threads // 8 * 8
        wanted = [number or min(share, 255) for number in attributes["registers"]]
        total = sum(self.threads_of(role) * n for role, n in zip(self.roles[1:], wanted, strict=True))
        if any(attributes["registers"]) and total > most:
            budgets = ", ".join(f"{role.name} {n}" for role, n in zip(self.roles[1:], wanted, strict=True))
            raise self.fail(
                operation,
                f"the roles want {total} registers, a multiprocessor has {most} ({budgets} a thread)",
                f"{threads} threads have {most // threads} each on average: lower a budget",
            )

    def threads_of(self, role: RoleThreads) -> int:
        """Threads of all copies of a role."""
        return self.limits.warp_threads * role.warps * role.copies

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return sum(map(self.threads_of, self.roles[1:])) or self.threads_of(self.roles[0])

    # Barriers

    def at(self, barriers: Operation, opcode: str) -> list[tuple[RoleThreads, Operation]]:
        """Operations of an opcode on the barriers of an allocation."""
        return [
            (role, operation)
            for role, operation in self.sites
            if operation.opcode == opcode and _origin(_barrier_of(operation)) is barriers
        ]

    def arrivals(self, barriers: Operation) -> None:
        sites = [*self.at(barriers, "barrier_arrive"), *self.at(barriers, "barrier_expect")]
        count = barriers.attributes["arrivals"]
        if not sites or not self.at(barriers, "barrier_wait"):
            return
        possible, texts = {0}, []
        for role in self.roles:
            own = [operation for other, operation in sites if other is role]
            if own:
                amounts = self.amounts(role, own)
                possible = {before + amount for before, amount in product(possible, amounts)}
                texts.append(f"'{role.name}' {' or '.join(map(str, sorted(amounts)))}")
        if count not in possible:
            raise self.fail(
                barriers,
                f"arrival count mismatch: a phase ends after {count} arrivals, but there come: {', '.join(texts)}",
                "a role arrives with each warp of each copy (one thread in an elected role, and for each expect)",
            )

    def amounts(self, role: RoleThreads, sites: Sequence[Operation]) -> set[int]:
        """How many arrivals of a role may come to one phase: its sites may be alternatives, or all be taken."""
        kinds = {_key(operation.operands[1]) if len(operation.operands) > 1 else "" for operation in sites}
        expects = [operation for operation in sites if operation.opcode == "barrier_expect"]
        each = 1 if expects else role.arrivals
        copies = {role.copies}
        if any(self.depends_on_copy(role, operation) for operation in sites):
            copies = set(range(1, role.copies + 1))
        return {each * n * times for n in copies for times in range(len(kinds), max(len(sites), len(kinds)) + 1)} | {
            each * n * len(kinds) for n in copies
        }

    def depends_on_copy(self, role: RoleThreads, operation: Operation) -> bool:
        """Whether the barrier, or when it is reached, may differ between the copies of a role."""
        if role.copy is None or role.copies == 1:
            return False
        values = list(operation.operands)
        for outer in _around(role.region, operation):
            values += outer.operands[: {"if": 1, "for": 3}.get(outer.opcode, 0)]  # the condition, or the bounds
        return any(role.copy in _inputs(value) for value in values)

    def bytes(self, barriers: Operation) -> None:
        """Compare each expectation with the copies: those next to it exactly, or what any of them could add up to."""
        loads = [operation for _, operation in self.at(barriers, "tma_load")]
        sizes = [self.received(operation) for operation in loads]
        for _, expect in self.at(barriers, "barrier_expect"):
            wanted = expect.attributes["bytes"]
            assert isinstance(wanted, int)
            if not loads:
                raise self.fail(expect, f"{wanted} bytes are expected, but no copy completes on this barrier",
                                "use arrive() for a barrier without copies")  # fmt: skip
            if None in sizes:
                continue
            known = [size for size in sizes if size is not None]
            expected_bytes = self.bytes_to_barrier(expect, loads, known)
            reachable = {expected_bytes} if expected_bytes is not None else _sums(known, wanted)
            if wanted not in reachable:
                brought = f"{expected_bytes}" if expected_bytes is not None else f"sums of {sorted(set(known))}"
                raise self.fail(
                    expect,
                    f"byte mismatch: {wanted} bytes are expected, the copies to this barrier bring {brought}",
                    "add up tile.bytes of all copies; with multicast, of what all CTAs send",
                )

    def bytes_to_barrier(self, expect: Operation, loads: Sequence[Operation], sizes: Sequence[int]) -> int | None:
        """The bytes of the copies to the same barrier, when all copies stand in one region with the expectation."""
        barrier = _key(expect.operands[0])
        for role in self.roles:
            for region in _regions(role.region):
                if expect in region.operations and all(load in region.operations for load in loads):
                    same = (n for load, n in zip(loads, sizes, strict=True) if _key(_barrier_of(load)) == barrier)
                    return sum(same) or None
        return None

    def received(self, load: Operation) -> int | None:
        """Bytes that a barrier gets for a copy: with multicast from every CTA that sends; None if that is not known."""
        position = _tile_position(load)
        kind = load.operands[position].type.handle
        assert isinstance(kind, SharedType)
        if len(load.operands) == position + 2:
            return tile_bytes(kind)
        cluster: Any = self.function.attributes.get("cluster", (1, 1, 1))
        mask = constant_of(load.operands[position + 2])
        peers = bin(mask & 0xFFFF).count("1") if isinstance(mask, int) else None
        if peers is None:
            return None
        return tile_bytes(kind) * min(peers, prod(cluster))

    def numbered(self) -> None:
        uses: dict[int, list[tuple[RoleThreads, Operation]]] = {}
        threads_of_all, warp = self.threads, self.limits.warp_threads
        for role, operation in self.sites:
            if operation.opcode not in ("named_sync", "named_arrive"):
                continue
            threads, number = operation.attributes["threads"], constant_of(operation.operands[0])
            assert isinstance(threads, int)
            if threads > threads_of_all or threads % warp:
                raise self.fail(operation, f"a barrier of {threads} threads in a CTA of {threads_of_all}",
                                f"count the threads that come: {warp} for each warp")  # fmt: skip
            if isinstance(number, int):
                if not 1 <= number <= GREATEST_NUMBER:
                    raise self.fail(operation, f"barrier number {number} is not yours",
                                    f"kernels use 1 to {GREATEST_NUMBER}")  # fmt: skip
                uses.setdefault(number, []).append((role, operation))
        for number, sites in uses.items():
            self.check_number(number, sites)

    def check_number(self, number: int, sites: Sequence[tuple[RoleThreads, Operation]]) -> None:
        threads = {str(operation.attributes["threads"]) for _, operation in sites}
        if len(threads) > 1:
            raise self.fail(
                sites[-1][1], f"barrier number {number} is used for {' and for '.join(sorted(threads))} threads",
                "all uses of a numbered barrier agree on the number of threads",
            )  # fmt: skip
        roles = {role for role, _ in sites}
        if len(roles) == 1 and not any(self.depends_on_copy(role, operation) for role, operation in sites):
            (role,) = roles
            coming = self.threads_of(role)
            if threads != {str(coming)}:
                raise self.fail(
                    sites[0][1],
                    f"unmatched barrier: number {number} waits for {threads.pop()} threads, '{role.name}' has {coming}",
                    f"count {self.limits.warp_threads} threads for each warp of each copy",
                )

    # Loads that are under way

    def loads(self) -> None:
        for found in unended_loads(self.function):
            kind = " {remote = true}" if found.remote else ""
            message = "load overtaken: its region ends, and no wait for the load can follow"
            if found.cause is not None:
                load = user_place(found.load.location)
                place = f" at {load}" if load is not None else ""
                message = f"load overtaken: {found.cause.opcode} does not wait for the load{place}"
            advice = f"shared_wait{kind} before it: arrivals are issued while loads are under way"
            raise self.fail(found.cause or found.load, message, advice)

    # Release of stages

    def releases(self, region: Region, flying: list[set[Any]]) -> list[set[Any]]:
        """Walk a region with the stages that products in flight read, the newest last; gives those at its end."""
        flying = list(flying)
        for operation in region.operations:
            if operation.opcode == "wgmma":
                tiles = [value for value in operation.operands[:2] if _stage_of(value) is not None]
                flying.append({(_origin(tile), _key(_stage_of(tile))) for tile in tiles})
            elif operation.opcode == "wgmma_wait":
                outstanding = operation.attributes["outstanding"]
                assert isinstance(outstanding, int)
                flying = flying[len(flying) - outstanding :] if outstanding else []
            elif operation.opcode == "barrier_arrive":
                self.release(operation, flying)
            elif operation.opcode in ("for", "while"):
                for inner in operation.regions:
                    after = self.releases(inner, [])
                flying = after
            elif operation.opcode == "if":
                ends = [self.releases(inner, flying) for inner in operation.regions]
                flying = max(ends, key=len)
        return flying

    def guarded(self, barriers: Operation) -> set[Operation]:
        """The rings whose stages are loaded after a wait for the barrier of the same number."""
        found: set[Operation] = set()
        for role, wait in self.at(barriers, "barrier_wait"):
            index = wait.operands[0].definition
            assert index is not None
            numbers = {_key(number) for number in index.operands[1:]}
            for other, load in self.sites:
                if other is role and load.opcode == "tma_load":
                    tile = load.operands[_tile_position(load)]
                    if _key(_stage_of(tile)) in numbers:
                        found.add(_origin(tile))
        return found

    def release(self, operation: Operation, flying: Sequence[set[Any]]) -> None:
        index = operation.operands[0].definition
        if index is None or index.opcode != "barrier_index" or constant_of(index.operands[1]) is not None:
            return
        stage = _key(index.operands[1])
        released = {(ring, stage) for ring in self.guarded(_origin(index.operands[0]))}
        if any(released & stages for stages in flying):
            raise self.fail(
                operation,
                "early release: a stage is released while a product in flight may read it",
                "release the stage of a product that wgmma_wait has ended: the one before, with outstanding=1",
            )


def _roles(function: Function, own: int) -> Iterator[RoleThreads]:
    """The kernel's own threads, then its roles."""
    yield RoleThreads(function.region, function.name, own, 1, False, None)
    for operation in function.region.operations:
        if operation.opcode == "warp_roles":
            attributes: Any = operation.attributes
            for number, region in enumerate(operation.regions):
                numbers = (attributes[name][number] for name in ("warps", "copies", "elected"))
                warps, copies, elected = numbers
                yield RoleThreads(region, _name(region, number), warps, copies, bool(elected), region.arguments[0])


def _name(region: Region, number: int) -> str:
    """The function that a role runs."""
    for operation in region.operations:
        place = operation.location
        while place is not None and place.caller is not None and place.caller.caller is not None:
            place = place.caller
        if place is not None and place.caller is not None:
            return place.function
    return f"role {number}"


def _walk(role: RoleThreads) -> Iterator[Operation]:
    """The operations of a role; the kernel's own are those outside of roles."""
    for operation in role.region.operations:
        if operation.opcode == "warp_roles":
            yield operation
        else:
            yield from operation.walk()


def _regions(region: Region) -> Iterator[Region]:
    """A region and those inside it."""
    yield region
    for operation in region.operations:
        if operation.opcode != "warp_roles":
            for inner in operation.regions:
                yield from _regions(inner)


def _around(region: Region, wanted: Operation) -> list[Operation]:
    """The operations whose regions an operation stands in, outermost first."""
    for operation in region.operations:
        if operation is not wanted and any(inner is wanted for inner in operation.walk()):
            inside = next(inner for inner in operation.regions if any(wanted in r.operations for r in _regions(inner)))
            return [operation, *_around(inside, wanted)]
    return []


def _tile_position(load: Operation) -> int:
    """Which operand of a copy is its tile."""
    return next(place for place, value in enumerate(load.operands) if isinstance(value.type.handle, SharedType))


def _barrier_of(operation: Operation) -> SSAValue:
    return operation.operands[_tile_position(operation) + 1 if operation.opcode == "tma_load" else 0]


def _origin(value: SSAValue) -> Operation:
    """The allocation that a handle comes from (the lowest, for memory over other memory)."""
    definition = value.definition
    assert definition is not None
    return _origin(definition.operands[0]) if definition.operands else definition


def _stage_of(tile: SSAValue) -> SSAValue | None:
    """The run-time index that chose a tile from its ring."""
    definition = tile.definition
    while definition is not None and definition.opcode in ("shared_slice", "shared_transpose", "shared_tile"):
        definition = definition.operands[0].definition
    return definition.operands[1] if definition is not None and definition.opcode == "shared_index" else None


def _inputs(value: SSAValue) -> set[SSAValue]:
    """The region arguments and loop results that a value is computed from."""
    found: set[SSAValue] = set()
    pending, seen = [value], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.definition is None:
            found.add(current)
        else:
            pending += current.definition.operands
    return found


def _is_voted(value: SSAValue) -> bool:
    """Whether a number is computed from a warp's vote."""
    pending, seen = [value], set()
    while pending:
        current = pending.pop()
        if current in seen or current.definition is None:
            continue
        seen.add(current)
        if current.definition.opcode == "warp_any":
            return True
        pending += current.definition.operands
    return False


def _key(value: SSAValue | None) -> Any:
    """Equal for values that are computed in the same way from the same ones; None for none."""
    if value is None:
        return None
    definition = value.definition
    if definition is None or definition.regions or len(definition.results) != 1:
        return id(value)
    attributes = tuple(sorted((name, str(entry)) for name, entry in definition.attributes.items()))
    return definition.opcode, attributes, tuple(_key(operand) for operand in definition.operands)


def _sums(sizes: Sequence[int], limit: int) -> set[int]:
    """What copies, each taken any number of times, can bring, up to a limit."""
    reached, pending = {0}, [0]
    while pending:
        start = pending.pop()
        for size in set(sizes):
            if start + size <= limit and start + size not in reached:
                reached.add(start + size)
                pending.append(start + size)
    return reached
