"""What an exported program writes: buffers, parameters and inputs that hold other numbers after a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from tilewright.importers.torch_data_conditions import Assumption, line_of_node
from tilewright.importers.torch_nodes import is_view

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_COPIES = ("clone", "alias", "detach", "lift_fresh_copy", "_to_copy")
# Views of a tensor that lies as they need it, else copies.
_MAYBE_COPIES = ("contiguous", "reshape", "reshape_as", "flatten", "ravel")
_OBSERVED = "_fused_moving_avg_obs_fq_helper_functional"  # results 2 to 5 are arguments 3 to 6, after the observer
_OF_EMBEDDINGS = {"embedding", "embedding_renorm", "output"}
MODULE_STATE = {InputKind.BUFFER: "buffer", InputKind.PARAMETER: "parameter"}


def written_by(program: ExportedProgram) -> set[str]:
    """The buffers, parameters and inputs that are changed; not those that the model writes what they hold already."""
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    owners = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs if spec.target is not None}
    found = set()
    for spec, node in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if spec.kind in _MUTATIONS:
            own = placeholders.get(owners.get(spec.target, str(spec.target)))
            if own is None or _unchanged(node) is not own:
                found.add(str(spec.target))
    return found


def written_copies(program: ExportedProgram) -> list[Assumption]:
    """That sizes are not 1 by which what the code writes to is a copy: with 1 it may be a view.

    ``x.t().contiguous().add_(1)`` changes ``x`` as well where one of its sizes is 1.  `program`: as exported, with its
    writes.
    """
    found: dict[Any, Assumption] = {}
    places = {node: place for place, node in enumerate(program.graph.nodes)}
    for node in places:
        for written in _written(node):
            for source in _copied(written):
                if not _is_read_after(source, node, places):
                    continue
                for size in source.meta["val"].shape:
                    if isinstance(size, torch.SymInt) and len(size.node.expr.free_symbols) == 1:
                        (symbol,) = size.node.expr.free_symbols
                        found.setdefault(symbol, Assumption(sympy.Ne(symbol, 1), line_of_node(node), only_one=True))
    return list(found.values())


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors that a call writes to."""
    schema = getattr(node.target, "_schema", None)
    if node.op == "call_function" and schema is not None and schema.is_mutable:
        for number, argument in enumerate(schema.arguments):
            value = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
                yield value


def _copied(node: fx.Node) -> Iterator[fx.Node]:
    """What a tensor is a copy of, where it may be a view of it with other sizes."""
    while node.op == "call_function" and node.args and isinstance(node.args[0], fx.Node):
        source = node.args[0]
        if _name(node) in _MAYBE_COPIES:
            value = source.meta.get("val")
            if isinstance(value, torch.Tensor) and not value.is_contiguous():
                yield source
        elif not _shares_memory(node):
            return
        node = source


def _is_read_after(node: fx.Node, write: fx.Node, places: Mapping[fx.Node, int]) -> bool:
    """Whether a tensor, or one that shares its memory, is read after a write, or belongs to the caller."""
    while node.op == "call_function" and _shares_memory(node):
        node = node.args[0]  # type: ignore[assignment]
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder" or any(places[user] > places[write] for user in node.users):
            return True
        waiting += [user for user in node.users if _shares_memory(user) and _name(user) not in _MAYBE_COPIES]
    return False


def _shares_memory(node: fx.Node) -> bool:
    """Whether a call returns its first argument, or a view of it."""
    first = node.args[0] if node.args else None
    return isinstance(first, fx.Node) and (is_view(node) or first in _written(node))


def _unchanged(node: fx.Node) -> fx.Node:
    """What a chain of copies without a change begins with. Rows that embeddings alone read are scaled at each call;
    observers keep what they have stored."""
    while (source := _read_unchanged(node)) is not None:
        node = source
    return node


def _read_unchanged(node: fx.Node) -> fx.Node | None:
    """What a node hands on as it is; None where it does not."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if _name(node) == "getitem" and _name(source) == _OBSERVED:
        place = node.args[1]
        return source.args[place + 1] if isinstance(place, int) and place >= 2 else None  # type: ignore[return-value]
    if _name(node) not in _COPIES and not _is_read_by_embeddings(node):
        return None
    return source if source.meta["val"].dtype == node.meta["val"].dtype else None


def _name(node: fx.Node) -> str:
    """The operation of a call, without its overload."""
    return getattr(node.target, "__name__", "").partition(".")[0] if node.op == "call_function" else node.op


def _is_read_by_embeddings(node: fx.Node) -> bool:
    """Whether it is a matrix whose rows were scaled, and embeddings alone read it and what it was made of, or copies of
    these; if it is scaled again, then to the same norm."""
    if _name(node) != "embedding_renorm":
        return False
    source: Any = node.args[0]
    while _name(source) in _COPIES:
        source = source.args[0]
    readers = {*_readers(node), *_readers(source)}
    norms = {reader.args[2:] for reader in readers if _name(reader) == "embedding_renorm"}
    return {_name(reader) for reader in readers} <= _OF_EMBEDDINGS and len(norms) == 1


def _readers(node: Any) -> set[fx.Node]:
    """The nodes that read the result of a node, or copies of it."""
    return {reader for user in node.users for reader in (_readers(user) if _name(user) in _COPIES else {user})}
