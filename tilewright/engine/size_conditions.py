"""Conditions on dynamic sizes that shapes alone do not tell: that a reshape keeps all elements.

``x.reshape(-1, 2, 4)`` of ``[n, 4]`` is ``[n // 2, 2, 4]``, which for an odd n would leave the last row out.
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Node
from tilewright.runtime.plan import Condition
from tilewright.symbolic import lift, product, simplify


def size_conditions(graph: Graph) -> list[Condition]:
    """What every call must check, each once: the numbers of elements of reshapes that are not equal by themselves."""
    found: dict[str, Condition] = {}
    for node in graph.nodes:
        if node.op != "reshape":
            continue
        (source,), (result,) = node.inputs, node.outputs
        assert source is not None
        left, right = product(source.shape), product(result.shape)
        difference = simplify(lift(left) - right)
        if difference != 0:
            found.setdefault(str(difference), Condition(left, right, _described(node)))
    return list(found.values())


def _described(node: Node) -> str:
    (source,), (result,) = node.inputs, node.outputs
    assert source is not None
    before, after = (f"[{', '.join(map(str, value.shape))}]" for value in (source, result))
    return f"the reshape of {before} to {after}" + (f" ({node.source})" if node.source else "")
