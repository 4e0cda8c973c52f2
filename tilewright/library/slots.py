"""The epilogue of a group, for the slot of a kernel: its function, its operands, what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.language.function import SourceFunction
from tilewright.library.epilogue import Epilogue, EpilogueCost
from tilewright.library.generated.slot_functions import Chain, GateChain
from tilewright.library.generated.source import ExtraReferences


@dataclass(frozen=True)
class Slots:
    """An epilogue, its operands, and the value that the kernel stores; `chain` and `gate` are what its functions are
    made of."""

    stored: Value
    extra: ExtraReferences = field(default_factory=ExtraReferences)
    epilogue: Epilogue = Epilogue()
    chain: Chain | None = None
    gate: GateChain | None = None

    @property
    def function(self) -> SourceFunction:
        """The epilogue's function."""
        return self.epilogue.function

    @property
    def cost(self) -> EpilogueCost:
        """The epilogue's cost."""
        return self.epilogue.cost

    def promoted(self, function: SourceFunction) -> Slots:
        """The same with sums of blocks of the depth that `function` promotes (`Epilogue.promotion`)."""
        cost = replace(self.cost, blocks=True, bare=False)
        return replace(self, epilogue=replace(self.epilogue, promotion=function, cost=cost))

    def rounded(self, columns: int | None = None) -> Slots:
        """The epilogue for kernels whose tensor cores wait while a tile's results are computed: with activations as
        exact as the stored type can tell, and, of so many `columns`, operands by column that are loaded once."""
        if self.chain is None and self.gate is None:
            return self
        epilogue = Epilogue() if self.chain is None else self.chain.written(self.extra, columns, rounded=True)
        if self.gate is not None:
            epilogue = self.gate.joined(epilogue, self.stored.dtype)
        found = replace(self, epilogue=epilogue)
        return found if self.epilogue.promotion is None else found.promoted(self.epilogue.promotion)


def gate_halves(group: Group) -> tuple[Node, Node] | None:
    """The slices of a gated product: the left and the right half of its columns."""
    assert group.anchor is not None
    computed = {group.anchor.output}
    slices: list[Node] = []
    for node in group.epilogue:  # slices of other tensors are part of how those are read
        if not computed.isdisjoint(node.inputs):
            computed.add(node.output)
            slices += [node] if node.op == "slice" else []
    if len(slices) != 2:
        return None
    left, right = sorted(slices, key=lambda node: int(node.attributes["start"]))
    return left, right


def epilogue_slots(group: Group, graph: Graph, extra: ExtraReferences | None = None) -> Slots:
    """The epilogue of a group's anchor. The last output is what the kernel stores.

    Raises `NotImplementedError` for a gated product, whose result has half as many columns (`library.matmul.gate`).
    """
    assert group.anchor is not None
    if gate_halves(group) is not None:
        raise NotImplementedError(f"{group.name}: the kernel keeps the halves of the columns in different threads")
    extra = extra if extra is not None else ExtraReferences()
    stored = group.outputs[-1]
    nodes = group.epilogue
    if not nodes and len(group.outputs) == 1:
        return Slots(stored, extra)
    anchor, others = group.anchor.output, tuple(group.outputs[:-1])
    return chain_slots(Chain((*group.prologue, *nodes), anchor, stored, graph.constants, others), extra)


def chain_slots(chain: Chain, extra: ExtraReferences, gate: GateChain | None = None) -> Slots:
    """The slots of a chain, which follows a gate if there is one."""
    epilogue = chain.written(extra)
    return Slots(chain.value, extra, epilogue if gate is None else gate.joined(epilogue), chain, gate)
