"""What an exported program writes: buffers, parameters and inputs that hold other numbers after a call."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_COPIES = ("clone", "alias", "detach", "lift_fresh_copy", "_to_copy")
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


def _unchanged(node: fx.Node) -> fx.Node:
    """What a chain of copies without a change begins with. Rows that embeddings alone read are scaled at each call."""
    while _name(node) in _COPIES or _is_read_by_embeddings(node):
        source = node.args[0]
        if not isinstance(source, fx.Node) or source.meta["val"].dtype != node.meta["val"].dtype:
            break
        node = source
    return node


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
