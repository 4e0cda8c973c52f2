"""Places in a dimension that are computed of sizes and may be negative: bounds of slices, selected places, pads,
ranges.  The programs are drawn from a seed; negative places count from the end in each call."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tilewright.graph import reference
from tilewright.importers import import_model
from tilewright.importers.shapes import place_from_front
from tilewright.symbolic import evaluate, symbol

CALLS = [(12, 1), (20, 5), (15, 3)]  # elements of x and of m
RANGES = {"t": ("t", 12, 20), "n": ("n", 1, 5)}


@pytest.mark.parametrize("factor", [-1, 1])
@pytest.mark.parametrize("offset", [-40, -3, 0, 40])
def test_the_sign_of_a_place_is_known_or_decided_by_the_call(factor: int, offset: int) -> None:
    n, extent = symbol("n", 1, 9), symbol("t", 1, 50)
    place = place_from_front(factor * n + offset, extent)
    for size in range(1, 10):
        wanted = factor * size + offset
        assert evaluate(place, {"n": size, "t": 45}) == (wanted if wanted >= 0 else 45 + wanted)


# PyTorch: expressions whose sign is the same for all of the sizes, so that each program is one way ----------------

TORCH_PLACES = ["-n", "-(n + 1)", "n - 9", "t - n", "-(t // 2)", "n - t", "-2 * n", "t // 3", "-t", "-t - n", "n"]
TORCH_STEPS = [
    "x[{a}:]",
    "x[:{a}]",
    "x[{a}:{b}]",
    "x[{a}:-1]",
    "x[2:{a}]",
    "x[{a}::3]",
    "x.select(0, {a})",
    "x.narrow(0, {a}, 1)",
    "x.roll({a}, 0)",
    "torch.nn.functional.pad(x, (0, 0, -n, {a}))",
    "torch.cat([x, m])[{a}:]",
    "torch.select_scatter(x, m[0], 0, {a})",
    "torch.slice_scatter(x, x[{a}:] * 2, 0, {a})",
    "(x @ x.T).diagonal(-3)",
    "x[torch.arange(-n, 0)]",
    "x[{a}:].unfold(0, 3, 2) if {a} < -3 else x",
]
INSIDE = ["-n", "n - 9", "t - n", "-(t // 2)", "n - t", "-t"]  # from -12 to 11


def torch_program(seed: int) -> str:
    drawn = random.Random(seed)
    steps = drawn.sample(TORCH_STEPS, 4)
    places = [INSIDE if "select" in step or "narrow" in step or "pad" in step else TORCH_PLACES for step in steps]
    found = [
        step.format(a=drawn.choice(inside), b=drawn.choice(TORCH_PLACES))
        for step, inside in zip(steps, places, strict=True)
    ]
    return ", ".join(found)


@pytest.mark.parametrize("seed", range(3))
def test_places_of_pytorch_that_sizes_give(seed: int) -> None:
    torch = pytest.importorskip("torch")
    program = torch_program(seed)
    code = compile(f"(lambda t, n: ({program}))(x.shape[0], m.shape[0])", "drawn", "eval")

    def function(x: Any, m: Any) -> Any:
        return eval(code, {"torch": torch, "x": x, "m": m})

    graph = import_model(
        function, (torch.randn(14, 2), torch.randn(4, 2)), {"x": {0: RANGES["t"]}, "m": {0: RANGES["n"]}}
    )
    for rows, others in CALLS:
        x, m = torch.randn(rows, 2), torch.randn(others, 2)
        given = {"x": x.numpy(), "m": m.numpy()}
        found = reference.run(graph, {value.name: given[value.name] for value in graph.inputs})
        for one, wanted in zip(found.values(), function(x, m), strict=True):
            np.testing.assert_allclose(one, wanted.numpy(), rtol=1e-5, atol=1e-5, err_msg=program)


# ONNX: expressions of either sign ----------------------------------------------------------------------------------


class OnnxProgram:
    """Slices, gathers, pads and ranges of x[2, t] by expressions of t and of q, the columns of m."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.lines = ["rows = Shape<start = 1>(x)", "others = Shape<start = 1>(m)"]
        self.results: list[tuple[str, str]] = []  # names and element types
        self.last = self.add(f"Sub(rows, {self.number(1)})")
        self.first = self.add("Neg(rows)")

    def add(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def number(self, value: int) -> str:
        return self.add(f"Constant<value_ints: ints = [{value}]>()")

    def place(self, depth: int = 0) -> str:
        kind = self.drawn.choice(["Neg", "Sub", "Add", "Div", "Mod", "Min", "Max"]) if depth < 3 else ""
        if not kind:
            return self.drawn.choice(["rows", "others"])
        left = self.place(depth + 1 + self.drawn.randrange(2))
        if kind == "Neg":
            return self.add(f"Neg({left})")
        by_number = kind in ("Div", "Mod") or self.drawn.random() < 0.5
        right = self.number(self.drawn.choice([2, 3, 5])) if by_number else self.place(depth + 1)
        return self.add(f"{kind}({left}, {right})")

    def inside(self) -> str:
        return self.add(f"Max({self.add(f'Min({self.place()}, {self.last})')}, {self.first})")

    def draw(self) -> None:
        kind = self.drawn.choice(["Slice", "Slice", "Slice", "Gather", "Pad", "Range", "list"])
        if kind == "Slice":
            step = self.drawn.choice([1, 1, 2, -1, -2])
            far = self.number(2**62 if step > 0 else -(2**62))
            stop = self.drawn.choice([far, self.place()])
            text = f"Slice(x, {self.place()}, {stop}, {self.number(1)}, {self.number(step)})"
        elif kind == "Gather":
            text = f"Gather<axis = 1>(x, {self.inside()})"
        elif kind == "Pad":
            zero = self.number(0)
            cut = self.add(f"Max({self.place()}, {self.add(f'Sub({self.number(1)}, rows)')})")
            text = f"Pad(x, {self.add(f'Concat<axis = 0>({zero}, {cut}, {zero}, {zero})')})"
        elif kind == "Range":
            odd = self.add(f"Add({self.add(f'Mul({self.place()}, {self.number(2)})')}, {self.number(1)})")
            text = f"Range({', '.join(self.add(f'Squeeze({item})') for item in (self.place(), self.place(), odd))})"
        else:
            place = self.add(f"Max({self.add(f'Min({self.place()}, {self.number(1)})')}, {self.number(-2)})")
            text = f"Gather<axis = 0>({self.add('Concat<axis = 0>(rows, others)')}, {place})"
        kind = "int64" if kind in ("Range", "list") else "float"
        self.results.append((self.add(text), kind))

    def model(self) -> Any:
        from onnx import parser

        outputs = ", ".join(f"{kind} {name}" for name, kind in self.results)
        text = "\n".join(self.lines)
        head = f"main (float[2, t] x, float[2, q] m) => ({outputs})"
        model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{head} {{\n{text}\n}}')
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        return model


@pytest.mark.parametrize("seed", range(6))
def test_places_of_onnx_that_sizes_give(seed: int) -> None:
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    program = OnnxProgram(seed)
    for _ in range(6):
        program.draw()
    model = program.model()
    graph = import_model(model, dynamic_shapes={"x": {1: RANGES["t"]}, "m": {1: ("q", 1, 5)}})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for rows, others in CALLS:
        given = {"x": np.random.rand(2, rows).astype(np.float32), "m": np.ones((2, others), np.float32)}
        found = reference.run(graph, {value.name: given[value.name] for value in graph.inputs})
        for output, one, wanted in zip(program.results, found.values(), session.run(None, given), strict=True):
            np.testing.assert_array_equal(one, wanted, err_msg=f"{output} of\n" + "\n".join(program.lines))
