"""Valid ONNX models with fields changed: types, names, numbers, attributes, inputs, dimensions, data, nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from tools.fuzz.onnx_models import check_import, draw, models, run_some
from tools.fuzz.target import Base

RUN_ONE_OF = 100  # imported models are built and run as well
NUMBERS = (0, 1, -1, 2, 3, -2, 7, 8, 16, 20, 31, 100, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "y", "NOTSET", "SAME_UPPER", "linear", "nearest", "reflect", "none", "a" * 300, "\0", "é", "none ")


def messages(message: Any) -> Iterator[Any]:
    """A message and all inside it."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if field.is_repeated else [value]:
                yield from messages(item)


def graphs(model: ModelProto) -> list[Any]:
    """The graphs and functions of a model."""
    return [item for item in messages(model) if isinstance(item, GraphProto)] + list(model.functions)


def some_node(model: ModelProto, generator: random.Random) -> NodeProto | None:
    nodes = [node for graph in graphs(model) for node in graph.node]
    return generator.choice(nodes) if nodes else None


def names_of(model: ModelProto) -> list[str]:
    return [name for graph in graphs(model) for node in graph.node for name in (*node.input, *node.output)] or ["x"]


def change_a_field(model: ModelProto, generator: random.Random) -> None:
    """Any field of any message: another value, or none."""
    message = generator.choice(list(messages(model)))
    fields = message.DESCRIPTOR.fields
    present = [field for field, _ in message.ListFields()]
    field = generator.choice(present if present and generator.random() < 0.8 else fields)
    if generator.random() < 0.25:
        message.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        repeated = getattr(message, field.name)
        if field.is_repeated and len(repeated):
            copy = type(repeated[0])()
            copy.CopyFrom(generator.choice(list(repeated)))
            repeated.append(copy)
    else:
        value = scalar(field, model, generator)
        if not field.is_repeated:
            setattr(message, field.name, value)
        elif len(getattr(message, field.name)) and generator.random() < 0.6:
            repeated = getattr(message, field.name)
            repeated[generator.randrange(len(repeated))] = value
        else:
            getattr(message, field.name).extend([value] * generator.choice([1, 1, 2, 5]))


def scalar(field: Any, model: ModelProto, generator: random.Random) -> Any:
    """A value that a field can hold."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        text = generator.choice([*TEXTS, *names_of(model)])
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return generator.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return generator.choice(list(field.enum_type.values_by_number))
    bits = 64 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    low = 0 if kind in (FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_UINT32) else -(1 << (bits - 1))
    return min(max(generator.choice(NUMBERS), low), (1 << (bits - 1)) - 1)


def change_an_attribute(model: ModelProto, generator: random.Random) -> None:
    node = some_node(model, generator)
    if node is None:
        return
    if not node.attribute or generator.random() < 0.3:
        known = ("axis", "axes", "keepdims", "kernel_shape", "pads", "strides", "group", "mode", "to", "perm", "value")
        node.attribute.add(name=generator.choice(known), type=AttributeProto.INT, i=generator.choice(NUMBERS))
        return
    attribute = generator.choice(list(node.attribute))
    choice = generator.randrange(6)
    if choice == 0:
        attribute.type = generator.randrange(15)
    elif choice == 1:
        node.attribute.remove(attribute)
    elif choice == 2:
        attribute.ref_attr_name = generator.choice(TEXTS)
    elif attribute.type == AttributeProto.INT:
        attribute.i = generator.choice(NUMBERS)
    elif attribute.type == AttributeProto.INTS:
        numbers = list(attribute.ints) or [1]
        numbers[generator.randrange(len(numbers))] = generator.choice(NUMBERS)
        del attribute.ints[:]
        attribute.ints.extend(numbers[: generator.randrange(len(numbers) + 1)] if choice == 3 else numbers)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = generator.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = generator.choice(TEXTS).encode()


def change_arity(model: ModelProto, generator: random.Random) -> None:
    node = some_node(model, generator)
    if node is None:
        return
    names = generator.choice([node.input, node.output])
    choice = generator.randrange(4)
    if choice == 0 and len(names):
        del names[generator.randrange(len(names))]
    elif choice == 1 and len(names):
        names[generator.randrange(len(names))] = generator.choice(["", *names_of(model)])
    else:
        names.append(generator.choice(["", "extra", *names_of(model)]))


def change_the_operation(model: ModelProto, generator: random.Random) -> None:
    node = some_node(model, generator)
    if node is not None:
        _, other = draw(generator)
        donor = some_node(other, generator)
        node.op_type = "Relu" if donor is None else donor.op_type


def change_an_initializer(model: ModelProto, generator: random.Random) -> None:
    """The numbers that a model stores: axes, shapes, indices, pads."""
    tensors = [item for item in messages(model) if isinstance(item, TensorProto)]
    if not tensors:
        return
    tensor = generator.choice(tensors)
    choice = generator.randrange(5)
    if choice == 0:
        tensor.data_type = generator.randrange(28)
    elif choice == 1 and len(tensor.dims):
        tensor.dims[generator.randrange(len(tensor.dims))] = generator.choice(NUMBERS)
    elif choice == 2:
        tensor.raw_data = tensor.raw_data[: generator.randrange(len(tensor.raw_data) + 1)]
    elif tensor.data_type == TensorProto.INT64:
        count = len(tensor.raw_data) // 8 or len(tensor.int64_data) or 1
        numbers = [generator.choice(NUMBERS[:12] if choice == 3 else NUMBERS) for _ in range(count)]
        tensor.raw_data = b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
    else:
        tensor.dims.append(generator.choice([1, 2, 0]))


def change_a_shape(model: ModelProto, generator: random.Random) -> None:
    entries = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not entries:
        return
    tensor = generator.choice(entries).type.tensor_type
    dims = tensor.shape.dim
    choice = generator.randrange(5)
    if choice == 0 or not len(dims):
        dims.add().dim_value = generator.choice(NUMBERS[:10])
    elif choice == 1:
        del dims[generator.randrange(len(dims))]
    elif choice == 2:
        dims[generator.randrange(len(dims))].dim_param = generator.choice(["n", "m", "2*n", "a b", *TEXTS])
    elif choice == 3:
        tensor.elem_type = generator.randrange(28)
    else:
        dims[generator.randrange(len(dims))].dim_value = generator.choice(NUMBERS)


def change_the_opset(model: ModelProto, generator: random.Random) -> None:
    if model.opset_import:
        generator.choice(list(model.opset_import)).version = generator.choice([*range(1, 29), *NUMBERS])


def move_nodes(model: ModelProto, generator: random.Random) -> None:
    graph = generator.choice(graphs(model) or [model.graph])
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    if not nodes:
        return
    choice = generator.randrange(3)
    if choice == 0:
        generator.shuffle(nodes)
    elif choice == 1:
        nodes.append(generator.choice(nodes))
    else:
        _, other = draw(generator)
        nodes += other.graph.node
        if isinstance(graph, GraphProto):
            known = {entry.name for entry in graph.input} | {tensor.name for tensor in graph.initializer}
            graph.input.extend(entry for entry in other.graph.input if entry.name not in known)
            graph.initializer.extend(tensor for tensor in other.graph.initializer if tensor.name not in known)
    del graph.node[:]
    graph.node.extend(nodes)


def call_a_function(model: ModelProto, generator: random.Random) -> None:
    """A node's operation becomes a function of the model, which may call itself."""
    node = some_node(model, generator)
    if node is None:
        return
    body = NodeProto.FromString(node.SerializeToString())
    body.domain = generator.choice(["", "", "", "fuzz"])
    inputs = list(dict.fromkeys(name for name in body.input if name))
    outputs = list(dict.fromkeys(name for name in body.output if name))
    imports = [helper.make_opsetid("", generator.choice([13, 17, 20, 21])), helper.make_opsetid("fuzz", 1)]
    model.functions.append(helper.make_function("fuzz", node.op_type, inputs, outputs, [body], imports))
    model.opset_import.append(helper.make_opsetid("fuzz", 1))
    node.domain = "fuzz"


CHANGES: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    change_a_field,
    change_a_field,
    change_an_attribute,
    change_an_attribute,
    change_arity,
    change_the_operation,
    change_an_initializer,
    change_an_initializer,
    change_a_shape,
    change_the_opset,
    move_nodes,
    call_a_function,
)


class Target(Base):
    megabytes = 1500

    def prepare(self, folder: Path) -> None:
        models()

    def run(self, seed: int) -> str:
        generator = random.Random(seed)
        _, model = draw(generator)
        for _ in range(generator.choice([1, 1, 1, 2, 3])):
            generator.choice(CHANGES)(model, generator)
        graph = check_import(model)
        return run_some(graph, generator) if generator.randrange(RUN_ONE_OF) == 0 else "imported"


TARGET = Target()
