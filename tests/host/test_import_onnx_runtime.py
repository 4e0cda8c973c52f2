"""ONNX operations with random attributes and sizes, dynamic ones too, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

from tilewright.errors import ShapeError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers.onnx import import_onnx  # noqa: E402
from tilewright.onnx import InferenceSession  # noqa: E402

Arrays = dict[str, np.ndarray]


def runtime_results(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray]:
    """What ONNX Runtime computes, without its own optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, feeds)
    return found


def model_of(
    operation: str,
    inputs: list[tuple[str, np.ndarray, bool]],
    outputs: list[str],
    opset: int = 20,
    domain: str = "",
    dynamic: bool = False,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Arrays]:
    """One node; inputs are (name, data, whether it is a constant), an empty name stands for one that is left out."""
    node = helper.make_node(operation, [name for name, _, _ in inputs], outputs, domain=domain, **attributes)
    entries, constants, feeds = [], [], {}
    for name, data, constant in inputs:
        if not name:
            continue
        if constant:
            constants.append(numpy_helper.from_array(data, name))
            continue
        shape = [f"{name}_{axis}" for axis in range(data.ndim)] if dynamic else list(data.shape)
        entries.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(data.dtype), shape))
        feeds[name] = data
    results = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
    graph = helper.make_graph([node], "test", entries, results, constants)
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def check(model: onnx.ModelProto, feeds: Arrays, rtol: float = 1e-4, atol: float = 1e-5, steps: int = 0) -> None:
    """Compare the graph's meaning with ONNX Runtime; `steps` of an integer result may differ (other roundings)."""
    wanted = runtime_results(model, feeds)
    graph = import_onnx(model)
    names = {value.name for value in graph.inputs}
    results = reference.run(graph, {name: data for name, data in feeds.items() if name in names}, dtype=None)
    for found, want in zip(results.values(), wanted, strict=True):
        assert (found.shape, found.dtype) == (want.shape, want.dtype)
        if want.dtype.kind in "iu":
            assert np.abs(found.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= steps
        elif want.dtype.kind == "b":
            np.testing.assert_array_equal(found, want)
        else:
            largest = float(np.max(np.abs(want.astype(np.float64)), initial=1.0, where=np.isfinite(want)))
            rtol = max(rtol, 4e-3) if want.dtype.itemsize == 2 else rtol
            left, right = found.astype(np.float64), want.astype(np.float64)
            np.testing.assert_allclose(left, right, rtol=rtol, atol=max(atol, rtol / 4) * largest)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
def test_resize_of_dynamic_sizes(mode: str, coordinates: str, rng: np.random.Generator) -> None:
    """Scales that are simple fractions, of sizes that only the run knows."""
    for scale in (0.5, 1.5, 2.0, 2.25):
        even = 4 if coordinates == "align_corners" else 1  # the standard does not round the new size there
        image = rng.random((1, 2, *(even * rng.integers(3, 9, 2))), dtype=np.float32)
        scales = np.array([1, 1, scale, 1.25], np.float32)
        options = {"mode": mode, "coordinate_transformation_mode": coordinates}
        if mode == "nearest":
            options["nearest_mode"] = str(rng.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]))
        inputs = [("x", image, False), ("", image, True), ("s", scales, True)]
        check(*model_of("Resize", inputs, ["y"], dynamic=True, **options), rtol=1e-3)


@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("size", [16, 17])
def test_transposed_convolutions_to_larger_sizes(padding: str, size: int, rng: np.random.Generator) -> None:
    """What is added lies at the end, whatever the padding."""
    inputs = [(name, rng.random(shape, np.float32), False) for name, shape in (("x", (1, 2, 5)), ("w", (2, 3, 3)))]
    check(*model_of("ConvTranspose", inputs, ["y"], auto_pad=padding, strides=[3], output_shape=[size]))


def test_the_default_functions_of_two_directions(rng: np.random.Generator) -> None:
    """ONNX Runtime's optimiser writes them for one direction as well."""
    shapes = {"x": (4, 2, 3), "w": (1, 5, 3), "r": (1, 5, 5)}
    inputs = [(name, rng.standard_normal(shape, np.float32), False) for name, shape in shapes.items()]
    check(*model_of("RNN", inputs, ["y"], hidden_size=5, activations=["Tanh", "Tanh"]))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("options", [
    {"mode": "linear", "antialias": 1},
    {"mode": "linear", "antialias": 1, "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
    {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5, "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
    {"mode": "cubic", "exclude_outside": 1, "coordinate_transformation_mode": "half_pixel_symmetric"},
], ids=str)  # fmt: skip
def test_resize_by_weights_that_only_the_run_knows(options: dict[str, Any], scaled: bool) -> None:
    """Larger, smaller and as it was; one dimension each way."""
    generator = np.random.default_rng(7)
    for extents, sizes in (((9, 5), (4, 11)), ((7, 6), (7, 3)), ((4, 8), (5, 8))):
        image = generator.random((1, 2, *extents), dtype=np.float32)
        inputs = [("x", image, False), ("", image, True)]
        if scaled:
            factors = [(size + 0.5) / extent for size, extent in zip(sizes, extents, strict=True)]
            inputs.append(("s", np.array([1, 1, *factors], np.float32), False))
        else:
            inputs += [("", image, True), ("s", np.array([1, 2, *sizes]), False)]
        model, feeds = model_of("Resize", inputs, ["y"], dynamic=True, **options)
        model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 4
        check(model, feeds, rtol=1e-3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("extent", "scale", "options"), [
    (5, 2.6, {"mode": "nearest"}),  # 13 pixels: the product is rounded up in float32
    (18, 0.3, {"mode": "nearest", "nearest_mode": "round_prefer_ceil"}),  # a place next to the middle of two
    (9, 2.6, {"mode": "nearest", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}),
    (6, 2.2, {"mode": "nearest", "coordinate_transformation_mode": "half_pixel_symmetric"}),
    (9, 1.7, {"mode": "nearest", "coordinate_transformation_mode": "align_corners"}),
    (9, 1.7, {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}),
], ids=str)  # fmt: skip
def test_resize_by_broken_scales(extent: int, scale: float, options: dict[str, Any], dynamic: bool) -> None:
    image = np.arange(extent * extent, dtype=np.float32).reshape(1, 1, extent, extent)
    region = np.array([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.8], np.float32)
    inputs = [("x", image, False), ("r", region, True), ("s", np.array([1, 1, scale, scale], np.float32), True)]
    check(*model_of("Resize", inputs, ["y"], dynamic=dynamic, **options))


def test_an_image_that_keeps_its_size_is_not_resized() -> None:
    inputs = [("x", np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3), False), ("", np.zeros(0), True)]
    inputs.append(("s", np.array([1, 1, 1.25, 1.25], np.float32), True))
    check(*model_of("Resize", inputs, ["y"], mode="linear"))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int32])
def test_resize_of_integers(kind: type, dynamic: bool, rng: np.random.Generator) -> None:
    """Rounded to the nearest integer, as the standard's reference does; ONNX Runtime cuts off."""
    for coordinates in ("half_pixel", "asymmetric"):
        limits = np.iinfo(np.int8 if kind is np.int8 else np.uint8)
        image = rng.integers(limits.min, limits.max, (1, 2, 5, 6)).astype(kind)
        scales = np.array([1, 1, 1.5, 0.5], np.float32)
        inputs = [("x", image, False), ("", image, True), ("s", scales, True)]
        options = {"mode": "linear", "coordinate_transformation_mode": coordinates}
        check(*model_of("Resize", inputs, ["y"], dynamic=dynamic, **options), steps=1)


def test_largest_of_windows_and_their_positions(rng: np.random.Generator) -> None:
    for number in range(12):
        count = 1 + number % 3
        image = rng.integers(-4, 4, (2, 3, *rng.integers(5, 9, count))).astype(np.float32)  # with equal elements
        kernel = rng.integers(1, 4, count)
        options = {
            "kernel_shape": kernel.tolist(),
            "strides": rng.integers(1, 3, count).tolist(),
            "pads": [int(rng.integers(0, size)) for size in kernel] * 2,
            "ceil_mode": int(rng.integers(0, 2)),
            "storage_order": int(count > 1 and rng.integers(0, 2)),
        }
        if not options["storage_order"]:
            options["dilations"] = rng.integers(1, 3, count).tolist()
        check(*model_of("MaxPool", [("x", image, False)], ["y", "places"], opset=12, **options))


@pytest.mark.parametrize("operation", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("opset", [11, 22])
def test_windows_wider_than_the_image_by_less_than_a_stride(operation: str, opset: int) -> None:
    """One window of what is there, as in ONNX Runtime; if sizes are free, an engine for these sizes has it."""
    counted = {"count_include_pad": 1} if operation == "AveragePool" else {}
    for extent, kernel, stride, pad in ((1, 2, 2, 0), (3, 4, 2, 0), (1, 5, 3, 1), (2, 4, 2, 0)):
        image = -np.arange(1.0, 1 + 7 * extent, dtype=np.float32).reshape(1, 1, extent, 7)
        options = {"kernel_shape": [kernel, 2], "strides": [stride, 2], "pads": [pad, 1, pad, 1], **counted}
        model, feeds = model_of(operation, [("x", image, False)], ["y"], opset, **options)
        check(model, feeds)
    model, feeds = model_of(
        operation, [("x", image, False)], ["y"], opset, dynamic=True, **{**options, "strides": [4, 2]}
    )
    with pytest.raises(ShapeError):
        reference.run(import_onnx(model), feeds, None)
    (found,) = InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_array_equal(found, runtime_results(model, feeds)[0])


@pytest.mark.parametrize("exponent", [0.5, 2.5, -1.0])
def test_powers_of_integers_by_real_numbers(exponent: float) -> None:
    """The exponent is not cut to the base's type: 4 ** 0.5 is 2, 10 ** -1 is 0."""
    for kind in (np.int32, np.int64):
        base = np.array([1, 4, 9, 10, 121], kind)
        for constant in (True, False):
            inputs = [("x", base, False), ("p", np.asarray(exponent, np.float32), constant)]
            check(*model_of("Pow", inputs, ["y"]))


def test_powers_of_half_numbers_by_wide_exponents() -> None:
    """-1 ** 2049 in float16, which does not have 2049."""
    inputs = [("x", np.array([-1, 1.001, 0.999], np.float16), False), ("p", np.array([2049] * 3, np.int64), False)]
    check(*model_of("Pow", inputs, ["y"]), rtol=2e-3)


def test_sums_of_truth_values(rng: np.random.Generator) -> None:
    indices = np.array([0, 0, 2, 2, 2], np.int64)
    inputs = [("x", np.zeros(4, np.bool_), False), ("i", indices, True), ("u", np.ones(5, np.bool_), False)]
    check(*model_of("ScatterElements", inputs, ["y"], reduction="add"))


def test_sums_of_powers(rng: np.random.Generator) -> None:
    for order in (1, 2, 3):
        image = rng.standard_normal((2, 3, 7, 6), dtype=np.float32)
        options = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "p": order}
        check(*model_of("LpPool", [("x", image, False)], ["y"], opset=18, **options))
        check(*model_of("GlobalLpPool", [("x", image, False)], ["y"], opset=18, p=order))


@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_boxes_resampled(ratio: int, rng: np.random.Generator) -> None:
    """Boxes inside, across the border and outside; their samples by number or by their size."""
    image = rng.standard_normal((2, 3, 7, 9), dtype=np.float32)
    corners = rng.uniform(-6, 22, (12, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    places = rng.integers(0, 2, 12)
    for coordinates in ("half_pixel", "output_half_pixel"):
        options = {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.5}
        inputs = [("x", image, False), ("boxes", boxes, False), ("images", places, False)]
        for mode in ("avg", "max"):
            options |= {"mode": mode, "coordinate_transformation_mode": coordinates}
            check(*model_of("RoiAlign", inputs, ["y"], opset=16, **options))
    inside = rng.integers(0, 12, (9, 2, 2)).astype(np.float32)
    numbered = np.concatenate([rng.integers(0, 2, (9, 1)).astype(np.float32), inside.min(1), inside.max(1)], axis=1)
    inputs = [("x", image, False), ("boxes", numbered, False)]
    check(*model_of("MaxRoiPool", inputs, ["y"], pooled_shape=[2, 3], spatial_scale=0.5))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_norm_of_neighbouring_channels(size: int, rng: np.random.Generator) -> None:
    image = rng.standard_normal((2, 6, 3, 2), dtype=np.float32)
    check(*model_of("LRN", [("x", image, False)], ["y"], size=size, alpha=0.1, beta=0.6, bias=1.5))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_samples_of_images_and_volumes(mode: str, padding: str, rng: np.random.Generator) -> None:
    for count in (2, 3) if mode != "cubic" else (2,):
        image = rng.standard_normal((2, 3, *rng.integers(3, 6, count)), dtype=np.float32)
        grid = (rng.random((2, *rng.integers(2, 5, count), count), dtype=np.float32) - 0.5) * 3
        inputs = [("x", image, False), ("grid", grid, False)]
        options = {"mode": mode, "padding_mode": padding, "align_corners": int(rng.integers(0, 2))}
        check(*model_of("GridSample", inputs, ["y"], **options), rtol=1e-3)


@pytest.mark.parametrize("operation", ["Conv", "MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_windows_padded_by_dynamic_sizes(operation: str, auto: str, rng: np.random.Generator) -> None:
    """ceil(size / stride) windows of an image whose size only the call tells."""
    for _ in range(3):
        kernel, strides = rng.integers(1, 5, 2).tolist(), rng.integers(1, 7, 2).tolist()
        options: dict[str, Any] = {"auto_pad": auto, "kernel_shape": kernel, "strides": strides}
        if operation == "AveragePool":
            options["count_include_pad"] = int(rng.integers(0, 2))
        x = rng.standard_normal((2, 3, *rng.integers(4, 12, 2)), dtype=np.float32)
        if operation != "Conv":  # of smaller windows than strides ONNX Runtime pads by negative numbers
            strides = np.minimum(kernel, strides).tolist()
            options["strides"] = strides
        inputs = [("x", x, False)]
        if operation == "Conv":
            inputs.append(("w", rng.standard_normal((4, 3, *kernel), dtype=np.float32), True))
        model, feeds = model_of(operation, inputs, ["y"], dynamic=True)
        model.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in options.items())
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
        check(model, feeds)


def test_the_largest_half_of_a_dynamic_dimension(rng: np.random.Generator) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    main (float[n, m] x) => (float[n, k] y, int64[n, k] places) {
        shape = Shape<start = 1>(x)
        two = Constant<value_ints: ints = [2]>()
        k = Div(shape, two)
        y, places = TopK(x, k)
    }"""
    model = onnx.parser.parse_model(text)
    for columns in (8, 9):
        check(model, {"x": rng.standard_normal((3, columns), dtype=np.float32)})


def test_the_largest_of_a_dimension_that_may_be_too_short(rng: np.random.Generator) -> None:
    inputs = [("x", rng.standard_normal((3, 7), dtype=np.float32), False), ("k", np.array([5]), True)]
    check(*model_of("TopK", inputs, ["y", "places"], dynamic=True))


@pytest.mark.slow(but_every=7)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("start", [-1, -3, -4, -5, -9, 0, 2, 3, 9])
@pytest.mark.parametrize("end", [-(2**63) + 1, -4, -3, -1, 0, 1])
@pytest.mark.parametrize("step", [-1, -2])
def test_slices_backwards(start: int, end: int, step: int, dynamic: bool, constant: bool) -> None:
    """Bounds are clamped, so that a start far before the first element is the first element."""
    numbers = [(name, np.array([number]), constant) for name, number in zip("seat", (start, end, 0, step), strict=True)]
    model, feeds = model_of("Slice", [("x", np.arange(3.0), False), *numbers], ["y"], dynamic=dynamic)
    for entry in model.graph.input[1:]:
        entry.type.tensor_type.shape.dim[0].dim_value = 1
    check(model, feeds)


@pytest.mark.parametrize("extent", [1500, 8400, 24000])
@pytest.mark.parametrize("largest", [0, 1])
def test_the_best_of_long_rows(extent: int, largest: int, rng: np.random.Generator) -> None:
    """What detectors without suppression choose of their boxes."""
    x = np.round(rng.standard_normal((2, extent)), 2).astype(np.float32)  # many are equal
    inputs = [("x", x, False), ("k", np.array([300]), True)]
    check(*model_of("TopK", inputs, ["y", "places"], dynamic=True, largest=largest))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [True, False])
def test_peepholes_of_sequences_of_any_length(direction: str, lengths: bool, rng: np.random.Generator) -> None:
    sides, steps, batch, width, hidden = 1 + (direction == "bidirectional"), 30, 3, 5, 4

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) / 2

    inputs = [
        ("x", numbers(steps, batch, width), False),
        ("w", numbers(sides, 4 * hidden, width), True),
        ("r", numbers(sides, 4 * hidden, hidden), True),
        ("b", numbers(sides, 8 * hidden), True),
        ("l" if lengths else "", np.array([30, 1, 17], np.int32), True),
        ("h", numbers(sides, batch, hidden), True),
        ("c", numbers(sides, batch, hidden), True),
        ("p", numbers(sides, 3 * hidden), True),
    ]
    model, feeds = model_of("LSTM", inputs, ["y", "last", "memory"], direction=direction, hidden_size=hidden)
    check(model, feeds)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "steps"
    check(model, feeds)


@pytest.mark.parametrize("options", [{}, {"clip": 0.4}], ids=["node", "loop"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_sequence_without_steps_ends_in_zeros(
    kind: str, gates: int, dynamic: bool, options: dict[str, float], rng: np.random.Generator
) -> None:
    inputs = [
        ("x", rng.standard_normal((3, 2, 3), np.float32), False),
        ("w", rng.standard_normal((2, 4 * gates, 3), np.float32), True),
        ("r", rng.standard_normal((2, 4 * gates, 4), np.float32), True),
        ("", np.zeros(0), True),
        ("l", np.array([0, 2], np.int32), False),
    ]
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    inputs += [(name, rng.standard_normal((2, 2, 4), np.float32), False) for name in states]
    outputs = ["y", *(f"last_{name}" for name in states)]
    check(*model_of(kind, inputs, outputs, dynamic=dynamic, hidden_size=4, direction="bidirectional", **options))


FUNCTIONS = (
    "Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus", "Softsign", "Tanh",
    "ThresholdedRelu",
)  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("kind", "gates", "count"), [("RNN", 1, 1), ("GRU", 3, 2), ("LSTM", 4, 3)])
def test_recurrent_layers_with_other_functions(kind: str, gates: int, count: int, dynamic: bool) -> None:
    """Each function in each place, with given numbers and without; bounds, coupled gates, lengths, both directions."""
    for number in range(0, len(FUNCTIONS), 2 * count - 1):
        generator = np.random.default_rng(number)
        chosen = [FUNCTIONS[(number + place) % len(FUNCTIONS)] for place in range(2 * count)]
        shapes = {"w": (2, 4 * gates, 3), "r": (2, 4 * gates, 4), "b": (2, 8 * gates)}
        weights = [(name, generator.standard_normal(shape, np.float32) / 3, True) for name, shape in shapes.items()]
        steps = 12 if dynamic else 6
        inputs = [("x", generator.standard_normal((steps, 2, 3), np.float32), False), *weights]
        inputs.append(("l", np.array([steps, 4], np.int32), False))
        options: dict[str, Any] = {"activation_alpha": [0.3, 0.6, 0.4]} if number % 2 else {"clip": 0.4}
        if kind == "LSTM":
            options["input_forget"] = 1
        model, feeds = model_of(
            kind, inputs, ["y", "last"], dynamic=dynamic, hidden_size=4, direction="bidirectional", activations=chosen,
            **options,
        )  # fmt: skip
        check(model, feeds)


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_axes_to_squeeze_are_all_of_size_one(dynamic: bool) -> None:
    inputs = [("x", np.zeros((2, 3, 4), np.float32), False), ("axes", np.zeros(0, np.int64), True)]
    check(*model_of("Squeeze", inputs, ["y"], dynamic=dynamic))
    inputs[0] = ("x", np.zeros((1, 3, 1), np.float32), False)
    check(*model_of("Squeeze", inputs, ["y"]))
    inputs[0] = ("x", np.zeros((1, 3, 1), np.float32), True)
    check(*model_of("Squeeze", inputs, ["y"]))


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_position_is_that_of_its_value_also_of_a_nan(kernel: int) -> None:
    x = np.array([[[1, 5, np.nan, 2, 3, 4, 9, np.nan, 8]]], np.float32)
    model, feeds = model_of("MaxPool", [("x", x, False)], ["y", "i"], kernel_shape=[kernel], strides=[2])
    values, positions = reference.run(import_onnx(model), feeds, dtype=None).values()
    np.testing.assert_array_equal(x.reshape(-1)[positions], values)


@pytest.mark.parametrize(("opset", "kind"), [(7, "float"), (10, "bool"), (12, "bool"), (13, "bool")])
def test_the_mask_of_dropout_outside_training(opset: int, kind: str, rng: np.random.Generator) -> None:
    text = f'<ir_version: 7, opset_import: ["" : {opset}]> g (float[n, 3] x) => (float[n, 3] y, {kind}[n, 3] z)'
    check(onnx.parser.parse_model(f"{text} {{ y, z = Dropout(x) }}"), {"x": rng.standard_normal((2, 3), np.float32)})
