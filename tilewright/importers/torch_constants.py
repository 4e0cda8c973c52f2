"""Small integer buffers that nothing writes: their values are known during the export.

Kernel sizes and strides that are kept as buffers, say: `int(self.stride)` is a number, where PyTorch would make it one
that only a run knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._subclasses import fake_tensor
from torch.export import ExportedProgram

_MOST_ELEMENTS = 64


def export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], strict: bool = False, **options: Any
) -> ExportedProgram:
    """`torch.export.export` with these numbers known."""
    written: set[str] = set()
    while True:
        found = {name: tensor for name, tensor in _small(module) if name not in written}
        with _known(found.values()):
            program = torch.export.export(module, args, kwargs, strict=strict, **options)
        again = _written(program) & found.keys()
        if not again:
            _drop_reads(program)
            return program
        written |= again


def _small(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers, by name."""
    for name, item in module.named_buffers():
        whole = not item.is_floating_point() and not item.is_complex() and not item.is_quantized
        if whole and item.layout == torch.strided and item.numel() <= _MOST_ELEMENTS:
            yield name, item


@contextmanager
def _known(tensors: Collection[torch.Tensor]) -> Iterator[None]:
    """PyTorch computes with the elements of these tensors, as it does with those of ``torch.tensor(3)``."""
    numbers = {id(tensor): tensor for tensor in tensors}
    convert = fake_tensor.FakeTensorMode.from_tensor

    def converted(self: Any, tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
        fake = convert(self, tensor, *rest, **named)
        if id(tensor) in numbers:
            fake.constant = tensor.detach().clone()
        return fake

    may_be_known = fake_tensor.FakeTensorMode.may_turn_const

    def knowable(self: Any, tensor: torch.Tensor) -> bool:
        """Not what lies in memory several times (expanded tensors), which PyTorch fails to copy."""
        return may_be_known(self, tensor) and (tensor.numel() < 2 or torch._debug_has_internal_overlap(tensor) == 0)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MOST_ELEMENTS))
        stack.enter_context(mock.patch.object(fake_tensor.FakeTensorMode, "may_turn_const", knowable))
        stack.enter_context(mock.patch.object(fake_tensor.FakeTensorMode, "from_tensor", converted))
        yield


def _drop_reads(program: ExportedProgram) -> None:
    """Without the reads of numbers that are known: read again, they would be others."""
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.item.default):
        if not node.users:
            program.graph.erase_node(node)


def _written(program: ExportedProgram) -> set[str]:
    """The buffers that may be written to, or views of them."""
    owners = program.graph_signature.inputs_to_buffers
    found = set()
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            for argument, item in zip(schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(item, fx.Node):
                    found |= {owners[name] for name in _origins(item) if name in owners}
    return found


def _origins(node: fx.Node) -> set[str]:
    """The placeholders that a node is made of."""
    found, pending = set(), [node]
    seen = set(pending)
    while pending:
        item = pending.pop()
        if item.op == "placeholder":
            found.add(item.name)
        pending += [other for other in item.all_input_nodes if other not in seen]
        seen.update(item.all_input_nodes)
    return found
