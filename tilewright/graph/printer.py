"""Graphs and fused graphs as text.

    graph mlp
    symbol batch 1..64
    input %x: f32[batch, 8]
    constant %fc.weight: f32[4, 8] #5d41402abc4b
    constant %c_2: f32[] = 2.0
    %matmul: f32[batch, 4] = matmul(%x, %fc.weight) {transpose_b=True} from "fc"
    %y: f32[batch, 4] = relu(%matmul)
    output y = %y

A constant shows the start of a hash of its bytes; one number is written out.  `graph.parser` reads
the text back, given the data of the constants.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import FusedGraph, Group
from tilewright.graph.ops import OPS
from tilewright.symbolic import Expression

_PLAIN = re.compile(r"[^\s\"\\(){}\[\],=%\x00-\x20]+")


def print_graph(graph: Graph) -> str:
    """The whole graph as text, one line for each part."""
    lines = [f"graph {graph.name}"]
    lines += [f"symbol {symbol.name} {symbol.low}..{symbol.high}" for symbol in graph.symbols.values()]
    lines += [f"input {type_text(value)}" for value in graph.inputs]
    lines += [f"constant {type_text(value)} {constant_text(data)}" for value, data in graph.constants.items()]
    lines += [node_text(node) for node in graph.nodes]
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    lines += [f"output {name_text(name)} = %{name_text(value.name)}" for name, value in outputs]
    lines += [f"mutate %{name_text(old.name)} = %{name_text(new.name)}" for old, new in graph.mutations.items()]
    return "\n".join(lines) + "\n"


def print_fused(fused: FusedGraph) -> str:
    """The groups in order of execution: kind, what goes in and out, and the nodes inside."""
    blocks = [f"fused graph {fused.graph.name}: {len(fused.groups)} groups"]
    blocks += [group_text(group) for group in fused.groups]
    if fused.remarks:
        blocks.append("remarks:\n" + "\n".join(f"  {remark}" for remark in fused.remarks))
    return "\n\n".join(blocks) + "\n"


def group_text(group: Group) -> str:
    """One group, the anchor marked with `*`."""
    lines = [f"{group.kind} {group.name}", f"  in  {', '.join(map(type_text, group.inputs))}"]
    lines += [f"  {'*' if node is group.anchor else ' '} {node_text(node, source=False)}" for node in group.nodes]
    lines.append(f"  out {', '.join(map(type_text, group.outputs))}")
    return "\n".join(lines)


def name_text(name: str) -> str:
    """A name, in quotes where it has spaces, brackets and the like: inputs and outputs keep the names of the model."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def type_text(value: Value) -> str:
    """``%x: f32[batch, 8]``."""
    return f"%{name_text(value.name)}: {value.dtype}[{', '.join(map(str, value.shape))}]"


def node_text(node: Node, source: bool = True) -> str:
    """One node; attributes that have their default value are left out."""
    defaults = OPS[node.op].attributes if node.op in OPS else {}
    printed = {
        key: item
        for key, item in node.attributes.items()
        if not (key in defaults and type(defaults[key]) is type(item) and defaults[key] == item)
    }
    results = ", ".join(map(type_text, node.outputs))
    operands = ", ".join("none" if item is None else f"%{name_text(item.name)}" for item in node.inputs)
    attributes = ", ".join(f"{key}={attribute_text(item)}" for key, item in printed.items())
    text = f"{results} = {node.op}({operands})" + (f" {{{attributes}}}" if attributes else "")
    return text + (f" from {json.dumps(node.source)}" if source and node.source else "")


def attribute_text(item: Any) -> str:
    """Numbers, booleans, strings, tuples, element types and sizes."""
    if isinstance(item, tuple):
        return f"({', '.join(map(attribute_text, item))}{',' if len(item) == 1 else ''})"
    if isinstance(item, DType):
        return item.text
    if isinstance(item, Expression):
        return f"[{item}]"
    if isinstance(item, Graph):
        return f"<graph {item.name}: {len(item.nodes)} nodes>"
    return json.dumps(item) if isinstance(item, str) else repr(item)


def constant_text(data: np.ndarray) -> str:
    """``= 2.0`` for one number, else ``#`` and the start of a hash."""
    if data.ndim == 0:
        return f"= {data.item()!r}"
    return f"#{hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:12]}"
