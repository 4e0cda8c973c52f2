"""Divides an ATen graph into parts that become engines, and operations that stay with PyTorch.

1. *Schedule*: all operations that can be compiled and wait for nothing are the first part, then come PyTorch's that
   wait for nothing more, then the next part, and so on: no order has fewer parts. Operations that draw random numbers
   keep their order.
2. *Too small*: a part of fewer than `LEAST_NODES` operations, none of them a product, convolution, norm, recurrent
   cell, branch or loop, stays with PyTorch, where something stays anyway: a call of an engine costs as much as a few
   operations of PyTorch. Of a graph between graph breaks that holds for elementwise operations on few elements.
3. *Borders*: views, and what depends on parameters alone, belong to no part. Each part that reads one has it inside,
   and PyTorch makes those it needs itself, so that parameters stay constants and views stay views. A view that has
   fewer elements than what it looks at is made by the part that computes this.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from tilewright.importers.torch_control import CONTROL
from tilewright.importers.torch_fx import is_contiguous, target_name
from tilewright.importers.torch_nodes import (
    elements,
    fakes_of,
    free_symbols,
    is_getitem,
    is_number,
    is_ordered,
    is_view,
    linear_sizes,
    reads_number,
    viewed,
)
from tilewright.importers.torch_ops import contraction, normalization, recurrent
from tilewright.importers.torch_symbols import linear_in

LEAST_NODES = 3
# What an engine of fewer operations saves between graph breaks does not pay for its call: up to so many elements.
_FEW_ELEMENTS = {"cpu": 1 << 12, "cuda": 1 << 20}
_ELEMENTWISE = ("aten._to_copy.default", "prims.convert_element_type.default")  # without PyTorch's tag for it
_LARGE = CONTROL.union(*(table.TABLE.rules for table in (contraction, normalization, recurrent)))

MakePart = Callable[[fx.GraphModule, list[int]], Callable[..., Any]]


@dataclass
class Phase:
    """Operations that run together: compiled, or one by one in PyTorch."""

    compiled: bool
    nodes: list[fx.Node]
    members: set[fx.Node] = field(default_factory=set)  # of a part: its nodes with the views and constants it needs
    inputs: dict[fx.Node, None] = field(default_factory=dict)
    results: dict[fx.Node, None] = field(default_factory=dict)


class Partition:
    """How one graph is divided; `assemble` makes the module that runs it."""

    def __init__(
        self,
        gm: fx.GraphModule,
        constants: Collection[fx.Node],
        runs_in_torch: Callable[[fx.Node], bool],
        first: Collection[fx.Node] = (),
        between_breaks: bool = False,
    ) -> None:
        """`runs_in_torch` tells which calls PyTorch runs; those of `first`, if any, are a part before all others;
        `between_breaks`: that PyTorch runs what comes before or after the graph."""
        self.gm = gm
        self.between_breaks = between_breaks
        self.constants = frozenset(constants)
        self.runs_in_torch = runs_in_torch
        self.free = self._free_nodes(constants)
        self.small: set[fx.Node] = set()
        self._roots: dict[fx.Node, frozenset[fx.Node]] = {}
        self.work = [node for node in gm.graph.nodes if node.op == "call_function" and self._is_work(node)]
        self._find_roots()
        self.phases = self._schedule() if not first else self._two(first)
        while self._leave_small_ones():
            self.phases = self._schedule()
        self.phase_of = {node: phase for phase in self.phases for node in phase.nodes}
        self._sources = self._size_sources()
        self._draw_borders()

    def _two(self, first: Collection[fx.Node]) -> list[Phase]:
        """The work in two parts."""
        return [Phase(True, [node for node in self.work if (node in first) == wanted]) for wanted in (True, False)]

    @property
    def parts(self) -> list[Phase]:
        return [phase for phase in self.phases if phase.compiled]

    # -- What there is to do --------------------------------------------------------------------

    def _free_nodes(self, constants: Collection[fx.Node]) -> set[fx.Node]:
        """What can be compiled and depends on parameters and constants alone, and so is there for every part."""
        given = set(constants)
        free: set[fx.Node] = set()
        for node in self.gm.graph.nodes:
            if node.op == "get_attr":
                given.add(node)
            elif node.op == "call_function" and not is_number(node) and not self.runs_in_torch(node):
                if all(argument in given or is_number(argument) for argument in node.all_input_nodes):
                    given.add(node)
                    free.add(node)
        return free

    def _is_work(self, node: fx.Node) -> bool:
        """Whether a call has a place in the schedule."""
        if is_getitem(node) or (is_number(node) and not reads_number(node)):
            return False
        return self.runs_in_torch(node) or not (node in self.free or is_view(node))

    def _find_roots(self) -> None:
        """The work that each node waits for, through views, sizes and results of tuples."""
        work = set(self.work)
        for node in self.gm.graph.nodes:
            found: set[fx.Node] = set()
            for argument in node.all_input_nodes:
                found |= {argument} if argument in work else self._roots[argument]
            self._roots[node] = frozenset(found)

    def _stays(self, node: fx.Node) -> bool:
        return node in self.small or self.runs_in_torch(node)

    # -- The schedule ---------------------------------------------------------------------------

    def _schedule(self) -> list[Phase]:
        number = {node: index for index, node in enumerate(self.work)}
        waits = {node: set(self._roots[node]) for node in self.work}
        ordered = [node for node in self.work if is_ordered(node)]
        for before, node in zip(ordered, ordered[1:], strict=False):
            waits[node].add(before)
        readers: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.work}
        for node, before_it in waits.items():
            for before in before_it:
                readers[before].append(node)
        ready: dict[bool, list[int]] = {True: [], False: []}
        for node in self.work:
            if not waits[node]:
                heapq.heappush(ready[not self._stays(node)], number[node])
        phases: list[Phase] = []
        compiled = True
        while ready[True] or ready[False]:
            nodes = []
            while ready[compiled]:
                node = self.work[heapq.heappop(ready[compiled])]
                nodes.append(node)
                for reader in readers[node]:
                    waits[reader].discard(node)
                    if not waits[reader]:
                        heapq.heappush(ready[not self._stays(reader)], number[reader])
            if nodes:
                phases.append(Phase(compiled, nodes))
            compiled = not compiled
        return phases

    def _leave_small_ones(self) -> bool:
        """Leave parts that are too small to PyTorch; True where there were some."""
        if any(self.runs_in_torch(node) for node in self.work):
            small = [phase for phase in self.parts if _is_small(phase.nodes)]
        elif self.between_breaks:
            small = [phase for phase in self.parts if _is_small(phase.nodes) and all(map(_is_quick, phase.nodes))]
        else:
            return False
        self.small.update(node for phase in small for node in phase.nodes)
        return bool(small)

    # -- Borders --------------------------------------------------------------------------------

    def _home(self, node: fx.Node) -> Phase | None:
        """The part in which a node's value is computed, or that which it is a view of; None if it is no part's."""
        if node in self.phase_of:
            phase = self.phase_of[node]
            return phase if phase.compiled else None
        if node.op != "call_function" or is_number(node) or self.runs_in_torch(node) or node in self.free:
            return None
        return self._home(node.args[0]) if is_getitem(node) else self._home(viewed(node))  # type: ignore[arg-type]

    def _draw_borders(self) -> None:
        for phase in self.phases:
            for node in phase.nodes:
                if phase.compiled:
                    self._include(phase, node)
                else:
                    self._fetch(*node.all_input_nodes)
        (output,) = self.gm.graph.find_nodes(op="output")
        self._fetch(*output.all_input_nodes)
        for phase in self.parts:
            self._add_sizes(phase)

    def _include(self, phase: Phase, node: fx.Node) -> None:
        """Make a node a member of a part, with what it reads: members too, or inputs."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node in phase.members:
                continue
            phase.members.add(node)
            for argument in node.all_input_nodes:
                if self._is_inside(phase, argument):
                    waiting.append(argument)
                else:
                    phase.inputs[argument] = None
                    self._fetch(argument)

    def _is_inside(self, phase: Phase, node: fx.Node) -> bool:
        """Whether a part that reads a node computes it itself."""
        home = self._home(node)
        if home is phase or node in self.free or node.op == "get_attr":
            return True
        return self._is_light(node) and (home is None or elements(viewed(node)) <= elements(node))

    def _is_light(self, node: fx.Node) -> bool:
        """Whether a node is a view that can be compiled."""
        return node.op == "call_function" and not is_number(node) and not self.runs_in_torch(node) and is_view(node)

    def _fetch(self, *nodes: fx.Node) -> None:
        """Make nodes readable outside of the parts: as results of parts, or by what PyTorch makes them of."""
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            home = self._home(node)
            if home is not None and self._is_light(node) and not self._is_result(node):
                waiting.append(viewed(node))
            elif home is not None:
                self._include(home, node)
                home.results[node] = None
            elif node.op == "call_function" and node not in self.phase_of:
                waiting += self._read_by(node)

    def _is_result(self, node: fx.Node) -> bool:
        """Whether a view is given by the part itself, rather than made by PyTorch of what it looks at."""
        whole, fake = viewed(node), node.meta["val"]
        if self._is_wanted(whole):
            return False
        return elements(whole) > elements(node) or (isinstance(fake, torch.Tensor) and is_contiguous(fake))

    def _is_wanted(self, node: fx.Node) -> bool:
        """Whether PyTorch's steps read a node in any case."""
        return any(user.op == "output" or self._stays(user) for user in node.users)

    # -- Sizes ----------------------------------------------------------------------------------

    def _size_sources(self) -> dict[Any, fx.Node]:
        """For each symbol the node that gives its number outside of the parts; a new one where there is none."""
        sources: dict[Any, fx.Node] = {}
        for node in self.gm.graph.nodes:
            symbol = getattr(getattr(node.meta.get("val"), "node", None), "expr", None)
            if is_number(node) and symbol is not None and symbol.is_Symbol:
                # A number read from a tensor is its own source: what has it as a size is made of it.
                if reads_number(node) or all(self._home(argument) is None for argument in node.all_input_nodes):
                    sources.setdefault(symbol, node)
        for node in list(self.gm.graph.nodes):
            if node.op in ("placeholder", "call_function") and self._home(node) is None:
                fake = node.meta.get("val")
                for axis, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
                    symbol = size.node.expr if isinstance(size, torch.SymInt) else None
                    if symbol is not None and symbol.is_Symbol and symbol not in sources:
                        sources[symbol] = self._new_size(node, axis, size)
        return sources

    def _new_size(self, node: fx.Node, axis: int, size: Any) -> fx.Node:
        after = node
        while after.next.op == "placeholder":
            after = after.next
        with self.gm.graph.inserting_after(after):
            created: fx.Node = self.gm.graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
        created.meta["val"] = size
        return created

    def _source_of_size(self, node: fx.Node) -> fx.Node | None:
        """The node from which a size that is a plain symbol is taken outside of the parts, if it is another."""
        symbol = getattr(getattr(node.meta.get("val"), "node", None), "expr", None)
        source = self._sources.get(symbol) if is_number(node) else None
        return None if source is node else source

    def _read_by(self, node: fx.Node) -> list[fx.Node]:
        """What PyTorch reads to make a node outside of the parts."""
        source = self._source_of_size(node)
        return [source] if source is not None else node.all_input_nodes

    def _add_sizes(self, phase: Phase) -> None:
        """Give a part the numbers of symbols that are the size of none of its inputs."""
        known = {linear_in(size)[0] for node in phase.inputs for _, size in linear_sizes(node)}  # type: ignore[index]
        nodes = {*phase.members, *phase.inputs}
        wanted = {symbol for node in nodes for fake in fakes_of(node) for symbol in free_symbols(fake)}
        for symbol in sorted(wanted - known, key=str):
            if symbol in self._sources:
                phase.inputs[self._sources[symbol]] = None
                self._fetch(self._sources[symbol])

    # -- The module -----------------------------------------------------------------------------

    def assemble(self, make_part: MakePart) -> fx.GraphModule:
        """A module of the whole graph's arguments and results that runs the phases; `make_part` makes what runs a part.

        It is given the part's own module and the positions of the constants among its arguments.
        """
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        owned: dict[str, Any] = {}
        for node in self.gm.graph.find_nodes(op="placeholder"):
            made[node] = graph.node_copy(node)
        for phase in self.phases:
            if not phase.compiled:
                for node in phase.nodes:
                    self._make(graph, made, node)
            elif phase.results:
                name = f"part_{len(owned)}"
                constants = [index for index, node in enumerate(phase.inputs) if node in self.constants]
                owned[name] = make_part(self._module(phase), constants)
                arguments = tuple(self._make(graph, made, node) for node in phase.inputs)
                called = graph.call_module(name, arguments)
                for index, node in enumerate(phase.results):
                    made[node] = graph.call_function(operator.getitem, (called, index))
        (output,) = self.gm.graph.find_nodes(op="output")
        for node in output.all_input_nodes:
            self._make(graph, made, node)
        graph.output(fx.map_arg(output.args[0], lambda node: made[node]))
        for node in graph.find_nodes(op="get_attr"):
            owned[str(node.target)] = getattr(self.gm, str(node.target))
        return fx.GraphModule(owned, graph, "Partitioned")

    def _make(self, graph: fx.Graph, made: dict[fx.Node, fx.Node], node: fx.Node) -> fx.Node:
        """The node of the whole module that has a node's value, made with what it reads."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            source = self._source_of_size(current)
            missing = [item for item in ([source] if source else current.all_input_nodes) if item not in made]
            if current in made or not missing:
                waiting.pop()
                if current not in made:
                    made[current] = made[source] if source else graph.node_copy(current, lambda item: made[item])
            else:
                waiting += missing
        return made[node]

    def _module(self, phase: Phase) -> fx.GraphModule:
        """A part as a module of its own: its inputs are the arguments, a tuple of its results the result."""
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        for node in phase.inputs:
            made[node] = graph.placeholder(node.name)
            made[node].meta = dict(node.meta)
        for node in self.gm.graph.nodes:
            if node in phase.members:
                made[node] = graph.node_copy(node, lambda item: made[item])
        graph.output(tuple(made[node] for node in phase.results))
        return fx.GraphModule(self.gm, graph, "Part")


def _is_small(nodes: Sequence[fx.Node]) -> bool:
    return len(nodes) < LEAST_NODES and not any(target_name(node.target) in _LARGE for node in nodes)


def _is_quick(node: fx.Node) -> bool:
    """Whether a call computes few elements one by one, which takes PyTorch about as long as starting it."""
    operation = node.target
    tags = operation.tags if isinstance(operation, torch._ops.OpOverload) else ()
    if torch.Tag.pointwise not in tags and target_name(operation) not in _ELEMENTWISE:
        return False
    fakes = [fake for fake in fakes_of(node) if isinstance(fake, torch.Tensor)]
    return all(elements(node) <= _FEW_ELEMENTS.get(fake.device.type, 0) for fake in fakes)
