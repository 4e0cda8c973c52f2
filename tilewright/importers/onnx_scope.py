"""Scopes of names: in the graph, in a branch that sees the graph's names, in a call of a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto, NodeProto

from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.importers.onnx_call import Tensor
from tilewright.importers.onnx_schema import DOMAINS, NEWEST, OTHER_DOMAINS, RUNTIME_DOMAINS
from tilewright.importers.onnx_sequences import RunTimeList, TensorSequence
from tilewright.importers.report import NO_RULE, Invalid, Unsupported


@dataclass(eq=False)
class Unavailable:
    """A value that no rule gives: `node` was reported, or does not give its secondary result `index`."""

    node: NodeProto
    index: int
    reported: bool


@dataclass(eq=False)
class Scope:
    """The values of one graph or one call of a function.

    `attributes` are those of the call, which nodes of the body may refer to.  `place` says where the call is.
    `opset` is the version of ONNX's own operations, `versions` those of all domains that are imported.
    """

    opset: int
    values: dict[str, Tensor | Unavailable | None] = field(default_factory=dict)  # None: an input that is left out
    outer: Scope | None = None
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    place: str = ""
    depth: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)

    def find(self, name: str) -> Tensor | Unavailable | None:
        """What a name stands for; None for the empty name and for inputs of a function that are left out."""
        if name in self.values:
            return self.values[name]
        return None if self.outer is None else self.outer.find(name)

    def branch(self) -> Scope:
        """A scope for a branch: names defined inside do not go outside."""
        return Scope(self.opset, {}, self, self.attributes, self.place, self.depth + 1, self.versions)

    def version(self, domain: str) -> int:
        """The version of a domain's operations; those of ONNX Runtime have the newest forms of the standard ones.

        Raises `Invalid` for a domain that the model does not import, and `Unsupported` for one that is not known.
        """
        if domain in RUNTIME_DOMAINS:
            return NEWEST
        if domain not in DOMAINS and domain not in OTHER_DOMAINS:
            raise Unsupported(NO_RULE)
        version = self.opset if domain in DOMAINS else self.versions.get(domain, 0)
        if version == 0:
            raise Invalid(f"the model imports no opset of {domain or 'ai.onnx'}, which this operation belongs to")
        if not 0 < version < 2**31:
            raise Invalid(f"the model imports opset {version} of {domain or 'ai.onnx'}, which there is not")
        return version

    def attributes_of(self, node: NodeProto) -> dict[str, AttributeProto]:
        """A node's attributes by name, references to those of the function's call replaced by what they refer to."""
        found: dict[str, AttributeProto] = {}
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                found[attribute.name] = attribute
            elif attribute.ref_attr_name in self.attributes:
                copy = AttributeProto()
                copy.CopyFrom(self.attributes[attribute.ref_attr_name])
                copy.name = attribute.name
                found[attribute.name] = copy
        return found


@dataclass(eq=False)
class BodyScope(Scope):
    """The values of a graph inside the graph: tensors from outside become its inputs (`captured`, by name)."""

    builder: GraphBuilder = field(kw_only=True)
    captured: dict[str, Value] = field(default_factory=dict, kw_only=True)
    inner: dict[Value, Value] = field(default_factory=dict, kw_only=True)  # the input of each

    def find(self, name: str) -> Tensor | Unavailable | None:
        if name in self.values or self.outer is None:
            return self.values.get(name)
        found = self.outer.find(name)
        if not isinstance(found, Tensor):
            return found
        self.values[name] = self._inside(found)
        return self.values[name]

    def _inside(self, found: Tensor) -> Tensor:
        """A tensor from outside as one of this graph."""
        if isinstance(found, TensorSequence):
            items = [self._inside(item) for item in found.items]
            return TensorSequence(found.name, items=items, element=found.element, nothing=found.nothing)
        if found.known is not None or found.value is None:
            return Tensor(found.name, known=found.known, hints=found.hints, size_type=found.size_type)
        if found.value not in self.inner:
            value = self.builder.input(f"outside.{found.value.name}", found.dtype, found.shape)
            self.inner[found.value], self.captured[value.name] = value, found.value
        if isinstance(found, RunTimeList):
            return RunTimeList(found.name, self.inner[found.value], item=found.item)
        return Tensor(found.name, self.inner[found.value], hints=found.hints)
