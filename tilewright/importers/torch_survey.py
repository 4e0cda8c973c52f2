"""Surveys an ATen graph: which operations an engine can compute, and why the others stay with PyTorch.

Every node is imported once, without an engine in mind. The results of one whose rule is missing or refuses become
inputs, so that the nodes after it are judged on their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tilewright.graph.build import GraphBuilder
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import ImportProblem, ImportReport, Unsupported
from tilewright.importers.torch_complex import REAL_TYPES, divided, is_complex
from tilewright.importers.torch_control import import_control_whole
from tilewright.importers.torch_fx import Walker, describe, dtype_of, problem_of, target_name
from tilewright.importers.torch_nodes import (
    fakes_of,
    free_symbols,
    is_check,
    is_getitem,
    is_needed_check,
    is_number,
    ranges,
    reads_number,
)
from tilewright.importers.torch_ops import FOREIGN, LEFT_TO_PYTORCH, RULES
from tilewright.importers.torch_symbols import SymbolTable, squeezed_symbols

IMPORT_RULES = {name: rule for name, rule in (RULES | FOREIGN).items() if name not in LEFT_TO_PYTORCH}
_MOVES = ("aten._to_copy.default", "prims.device_put.default")


class Survey:
    """The calls of one graph by what becomes of them; those that are in none of the sets can be compiled.

    `stays` has the operations that PyTorch computes, with the reason, `moves` the copies between devices, which are
    PyTorch's without being worth a word, `checks` the assertions that PyTorch makes.
    """

    def __init__(
        self, gm: fx.GraphModule, constants: Collection[fx.Node], device: str, known: Mapping[fx.Node, ImportProblem]
    ) -> None:
        """`constants` are the placeholders whose tensors stay the same, `known` what was found to stay before."""
        self.gm = gm
        self.constants = constants
        self.device = device
        self.stays: dict[fx.Node, ImportProblem] = dict(known)
        self.moves: set[fx.Node] = set()
        self.checks: set[fx.Node] = set()
        self._anywhere: set[fx.Node] = set()  # made from nothing on the host: an engine has it where it needs it
        self._builder = GraphBuilder("survey")
        self._symbols = SymbolTable(self._builder, ranges(gm.graph.nodes), squeezed_symbols(gm.graph))
        self._walker = Walker(self._builder, self._symbols, ImportReport("survey"), IMPORT_RULES, import_control_whole)
        for node in gm.graph.nodes:
            self._name_sizes(node)
        for node in gm.graph.nodes:
            self._visit(node)

    def is_kept(self, node: fx.Node) -> bool:
        """Whether PyTorch runs a call."""
        while is_getitem(node):
            node = node.args[0]  # type: ignore[assignment]
        return node in self.stays or node in self.moves or node in self.checks

    @property
    def refused(self) -> set[fx.Node]:
        """The operations that stay, without those that are always PyTorch's."""
        return {node for node in self.stays if not _is_always_pytorchs(node)}

    def _name_sizes(self, node: fx.Node) -> None:
        for fake in fakes_of(node):
            for symbol in free_symbols(fake):
                if self._symbols.is_size(symbol):
                    self._symbols.name(symbol, None, f"size_{len(self._symbols.sizes)}")

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._offer(node)
        elif node.op == "get_attr":
            value = getattr(self.gm, str(node.target), None)
            if isinstance(value, torch.Tensor):
                self._walker.values[node] = self._tensor(value, node.name, constant=True)
        elif node.op == "call_function":
            self._call(node)

    def _call(self, node: fx.Node) -> None:
        if is_check(node):
            if is_needed_check(node):
                self.checks.add(node)
        elif is_getitem(node) and self.is_kept(node):
            self._walker.run([node])
        elif node in self.stays or self._is_elsewhere(node):
            self._offer(node)
        elif reads_number(node):
            self._keep(node, "a number read out of a tensor by .item()", "keep it a tensor of no dimensions")
        elif isinstance(node.meta.get("val"), torch.SymInt):  # parts are given numbers
            self._offer(node)
        else:
            self._import(node)

    def _import(self, node: fx.Node) -> None:
        problems = self._walker.report.problems
        reported = len(problems)
        self._walker.run([node])
        if node in self._walker.values and self._walker.values[node] is not None or is_number(node):
            return
        if len(problems) > reported:
            self._keep(node, problems[-1].reason, problems[-1].advice)
            return
        missing = [argument for argument in node.all_input_nodes if self._walker.values.get(argument) is None]
        reason = ", ".join(f"its argument {argument.name!r} is {describe(argument)}" for argument in missing)
        self._keep(node, reason or "it gives no tensor", "tensors of real numbers and integers can be compiled")

    def _keep(self, node: fx.Node, reason: str, advice: str) -> None:
        problem = problem_of(node, reason, advice)
        while is_getitem(node):  # a result that cannot be given keeps the operation
            node = node.args[0]  # type: ignore[assignment]
        self.stays[node] = problem
        self._offer(node)
        for user in node.users:
            if self._walker.values.pop(user, None) is not None:
                self._walker.run([user])

    def _is_elsewhere(self, node: fx.Node) -> bool:
        """Whether a call works on another device, or copies from one to another; notes it as what stays or moves."""
        if is_getitem(node):
            return False
        results = [fake for fake in fakes_of(node) if isinstance(fake, torch.Tensor)]
        given = [argument for argument in node.all_input_nodes if argument not in self._anywhere]
        fakes = [fake for argument in given for fake in fakes_of(argument) if isinstance(fake, torch.Tensor)]
        if not fakes and all(fake.device.type == "cpu" for fake in results):
            self._anywhere.add(node)
            return False
        here = any(str(fake.device) == self.device for fake in fakes)
        odd = [fake for fake in fakes if str(fake.device) != self.device and not _is_host_scalar(fake)]
        odd += [fake for fake in results if str(fake.device) != self.device and (here or not _is_host_scalar(fake))]
        if not odd:
            return False
        if target_name(node.target) in _MOVES:
            self.moves.add(node)
        else:
            where = ", ".join(sorted({str(fake.device) for fake in odd}))
            reason = f"it has tensors on {where}; the engines of this graph run on {self.device}"
            self.stays[node] = problem_of(node, reason, "move its tensors to one device")
        return True

    def _offer(self, node: fx.Node) -> None:
        """Make what a node that is not compiled gives known, as far as a graph can have it as an input."""
        fake = node.meta.get("val")
        if isinstance(fake, (tuple, list)):
            values = [self._tensor(item, f"{node.name}_{index}") for index, item in enumerate(fake)]
            self._walker.values[node] = tuple(values)
        elif isinstance(fake, torch.Tensor):
            self._walker.values[node] = self._tensor(fake, node.name, node in self.constants)
        elif isinstance(fake, int):
            self._walker.values[node] = fake
        elif isinstance(fake, torch.SymInt):
            self._walker.values[node] = self._number(fake, node.name)
        if self._walker.values.get(node) is None:
            self._walker.values.pop(node, None)

    def _number(self, fake: torch.SymInt, name: str) -> Any:
        """A number that parts are given: a size, or an input where it may be negative."""
        with suppress(Unsupported):
            return self._symbols.size(fake)
        named = self._symbols.name_number(fake, name) is not None
        return self._symbols.size(fake) if named else self._symbols.given_number(fake, name)

    def _tensor(self, fake: Any, name: str, constant: bool = False) -> Any:
        if not isinstance(fake, torch.Tensor) or fake.layout != torch.strided:
            return None
        if is_complex(fake):
            pairs = torch.empty((*fake.shape, 2), dtype=REAL_TYPES[fake.dtype], device="meta")
            parts = self._tensor(pairs, name, constant)
            return None if parts is None else divided(Emitter(self._builder), parts)
        try:
            shape, dtype = self._symbols.shape(fake.shape), dtype_of(fake.dtype)
        except Unsupported:
            return None
        if constant:
            return self._builder.constant(np.broadcast_to(np.zeros((), dtype.numpy), tuple(fake.shape)), name)
        return self._builder.input(name, dtype, shape)


def _is_host_scalar(fake: torch.Tensor) -> bool:
    return fake.device.type == "cpu" and fake.ndim == 0


def _is_always_pytorchs(node: fx.Node) -> bool:
    """Whether a call draws random numbers, reads a size or a number from data, or computes with such a number."""
    if target_name(node.target) in LEFT_TO_PYTORCH or _draws(node):
        return True
    if reads_number(node) or any(is_number(given) and _from_data(given) for given in node.all_input_nodes):
        return True
    return bool(_from_data(node).difference(*map(_from_data, node.all_input_nodes)))


def _draws(node: fx.Node) -> bool:
    """Whether a call draws random numbers; attention does if it has a dropout."""
    operation = node.target
    if not isinstance(operation, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in operation.tags:
        return False
    parameters = operation._schema.arguments
    given = dict(zip((each.name for each in parameters), node.args, strict=False)) | node.kwargs
    dropouts = [given.get(each.name, each.default_value) for each in parameters if each.name == "dropout_p"]
    return dropouts != [0]


def _from_data(node: fx.Node) -> set[Any]:
    """The symbols in a node's sizes and numbers that stand for what only the run knows."""
    return {symbol for fake in fakes_of(node) if fake is not None for symbol in free_unbacked_symbols(fake)}
