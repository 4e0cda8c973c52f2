"""PyTorch programs whose numbers are easily lost: repeated axes, casts, special values, ends of ranges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.build.builder import build  # noqa: E402
from tilewright.errors import ImportModelError, ShapeError  # noqa: E402
from tilewright.graph import reference  # noqa: E402
from tilewright.importers import import_model  # noqa: E402

INFINITY, NAN = math.inf, math.nan
SPECIAL = [INFINITY, -INFINITY, NAN, 0.0, -0.0, 1.0, -1.0, 2.5, -7.0, 1e10, -1e10, 3e38]
Function = Callable[..., Any]


class Functions(torch.nn.Module):
    """Several functions of the same inputs as one model."""

    def __init__(self, functions: Sequence[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Any, y: Any = None) -> list[Any]:
        return [function(*([x] if y is None else [x, y])) for function in self.functions]


def check(functions: Sequence[Function], *inputs: Any, dynamic: Any = None, sizes: Sequence[Any] = ()) -> None:
    """The functions compiled together against PyTorch: equal, or within rounding of sums of a few numbers."""
    model = Functions(functions)
    engine = tilewright.compile(model.eval(), inputs, dynamic_shapes=dynamic, effort=0)
    for arguments in [inputs, *sizes]:
        expected = model(*arguments)
        results = engine(*arguments)
        results = torch.utils._pytree.tree_leaves(results)
        flat = [value for each in expected for value in (each if isinstance(each, list) else [each])]
        for number, (result, value) in enumerate(zip(results, flat, strict=True)):
            torch.testing.assert_close(
                torch.as_tensor(result),
                value,
                equal_nan=True,
                rtol=1e-5,
                atol=1e-6,
                msg=lambda text, n=number: f"function {n}: {text}",
            )


REPEATED: list[Function] = [
    lambda x: x.expand(2, -1, -1).sum(0),
    lambda x: x.expand(4, -1, -1).mean(0),
    lambda x: x.repeat(3, 1, 1).prod(0),
    lambda x: x.expand(3, -1, -1).var(0),
    lambda x: x.expand(3, -1, -1).logsumexp(0),
    lambda x: x.expand(33, -1, -1).amax(0),
    lambda x: x.expand(40, -1, -1).sum(0),
    lambda x: torch.ones_like(x).sum(1),
    lambda x: x.mean(1, keepdim=True).expand(-1, x.shape[1], -1).sum((0, 1)),
    lambda x: (x.expand(5, -1, -1) * 2 + 1).sum(0),
    lambda x: x[:, :, None].expand(-1, -1, 6, -1).sum(2),
    lambda x: x[:, :, None].expand(-1, -1, 6, -1).softmax(2),
    lambda x: x.expand(3, -1, -1).cumsum(0),
]  # fmt: skip


def test_reductions_over_repeated_axes_count_every_repeat():
    check(REPEATED, torch.randn(1, 3, 4))


def test_reductions_over_repeated_axes_of_dynamic_sizes():
    functions = [*REPEATED, lambda x: torch.ones_like(x).sum(0), lambda x: x.mean(1, keepdim=True).expand_as(x).sum(1)]
    sizes = [(torch.randn(1, n, 4),) for n in (1, 2, 31, 32)]
    check(functions, torch.randn(1, 3, 4), dynamic={"x": {1: ("n", 1, 32)}}, sizes=sizes)


def test_rolls_by_more_than_a_dynamic_size():
    shifts = (50, -50, 5, -5, 1, 0, 1000003)
    functions: list[Function] = [lambda x, shift=shift: x.roll(shift, 0) for shift in shifts]
    functions += [lambda x: x.roll((7, -9), (0, 1)), lambda x: x.roll(x.shape[0] // 2, 0), lambda x: x.roll(11)]
    sizes = [(torch.randn(n, 3),) for n in (1, 2, 7, 32)]
    check(functions, torch.randn(5, 3), dynamic={"x": {0: ("n", 1, 32)}}, sizes=sizes)


def test_slices_that_a_size_does_not_have_are_refused():
    engine = tilewright.compile(lambda x: x[1], (torch.randn(6, 3),), {"x": {0: ("n", 1, 8)}})
    with pytest.raises(ShapeError, match=r"sizes n = 1: .*: 0, not 3"):
        engine(torch.randn(1, 3))


def test_limits_that_are_read_out_of_tensors():
    x = torch.arange(-3, 9)
    functions = [lambda x, n: x.clamp(0, n.item() * 2 - 1), lambda x, n: x.clamp_min(n.item())]
    check(functions, x, torch.tensor(3), sizes=[(x, torch.tensor(n)) for n in (1, -2)])


def test_a_squeeze_of_a_dynamic_dimension_drops_a_size_of_one():
    engine = tilewright.compile(lambda x: x.squeeze(-1), (torch.randn(3, 4),), {"x": {1: (1, 8)}})
    for size in (2, 1, 8):
        x = torch.randn(3, size)
        assert torch.equal(engine(x), x.squeeze(-1))


FLOATS8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.float64], ids=str)
def test_casts_through_narrower_types_round(source: Any):
    numbers = [*SPECIAL, 3.7, 240.0, 248.0, 249.0, 448.0, 464.0, 465.0, 500.0, 57344.0, 61439.0, 61440.0, 1e-3, 1e-9]
    functions: list[Function] = []
    for dtype in [*FLOATS8, torch.float16, torch.bfloat16]:
        functions += [lambda x, dtype=dtype: x.to(dtype).float(), lambda x, dtype=dtype: (x + 1).to(dtype).to(x.dtype)]
    check(functions, torch.tensor(numbers, dtype=torch.float64).to(source))


def test_float8_results_and_inputs():
    for dtype in FLOATS8:
        x = torch.tensor([*SPECIAL, 3.7, 500.0, 61440.0, -61440.0])
        engine = tilewright.compile(lambda x, dtype=dtype: (x * 1).to(dtype), (x,))
        assert torch.equal(engine(x).view(torch.uint8), x.to(dtype).view(torch.uint8)), dtype
        back = tilewright.compile(lambda x: x.float(), (x.to(dtype),))
        torch.testing.assert_close(back(x.to(dtype)), x.to(dtype).float(), equal_nan=True)


INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.float16], ids=str)
def test_floats_that_no_integer_holds(source: Any):
    # PyTorch and NumPy disagree about float64 to uint8 beyond int32.
    numbers = [*SPECIAL, 300.0, -300.0, 70000.0, 2147483648.0, -2147483648.0, -2147483649.0, 9.3e18, 1.7e19, 255.9]
    x = torch.tensor(numbers, dtype=torch.float64).to(source)
    check([lambda x, dtype=dtype: (x * 1).to(dtype) for dtype in INTEGERS[:4]], x)
    check([lambda x, dtype=dtype: x.to(dtype).to(x.dtype) for dtype in INTEGERS[:4]], x)
    check(
        [lambda x: x.to(torch.uint8)],
        torch.tensor([255.9, 256.0, 300.0, -1.0, -300.0, 70000.0, INFINITY, NAN]).to(source),
    )


def test_integers_through_narrower_integers_wrap():
    x = torch.tensor([0, 1, -1, 127, 128, -129, 300, 2**31, 2**40 + 5, -(2**63)])
    check([lambda x, dtype=dtype: x.to(dtype).to(torch.int64) for dtype in (*INTEGERS, torch.bool)], x)


def test_special_values():
    x = torch.tensor(SPECIAL).repeat_interleave(len(SPECIAL))
    y = torch.tensor(SPECIAL).repeat(len(SPECIAL))
    functions: list[Function] = [
        lambda x, y: x // y, lambda x, y: x // 2, lambda x, y: x.remainder(y), lambda x, y: x.fmod(y),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"), lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: x.sign(), lambda x, y: x.sgn(), lambda x, y: torch.maximum(x, y), lambda x, y: torch.minimum(x, y),
        lambda x, y: x.clamp(-1, 1), lambda x, y: x.clamp(y, 2 * y), lambda x, y: x.relu(), lambda x, y: x.round(),
        lambda x, y: x.bool(), lambda x, y: x == y, lambda x, y: x < y, lambda x, y: torch.atan2(x, y),
        lambda x, y: x.reshape(12, 12).amax(1), lambda x, y: x.reshape(12, 12).argmin(0), lambda x, y: x.trunc(),
    ]  # fmt: skip
    check(functions, x, y)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic_wraps(dtype: Any):
    limits = torch.iinfo(dtype)
    numbers = [limits.min, limits.max, 0, 1, 2, 3, 5, limits.max - 1, limits.min + 1]
    x = torch.tensor(numbers, dtype=dtype).repeat_interleave(9)
    y = torch.tensor([value or 7 for value in numbers], dtype=dtype).repeat(9)
    functions: list[Function] = [
        lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x // y, lambda x, y: x % y,
        lambda x, y: x.fmod(y), lambda x, y: torch.div(x, y, rounding_mode="trunc"), lambda x, y: x + 1000,
        lambda x, y: x * -3, lambda x, y: x.sum(), lambda x, y: x.cumsum(0), lambda x, y: x.prod(),
        lambda x, y: torch.maximum(x, y), lambda x, y: x == 300, lambda x, y: x**3, lambda x, y: -x,
        lambda x, y: x.abs(), lambda x, y: x**y.abs().clamp(0, 40), lambda x, y: x.float().mean(), lambda x, y: x / y,
        lambda x, y: x.clamp(2, 5), lambda x, y: x.clamp(1.5, 3.5), lambda x, y: x.bitwise_and(y), lambda x, y: ~x,
    ]  # fmt: skip
    check(functions, x, y)


def test_integers_divided_by_zero_are_zero():
    """PyTorch raises an error, NumPy gives 0; the process must not end."""
    functions: list[Function] = [
        lambda x, y: x // y, lambda x, y: x % y,
        lambda x, y: torch.div(x, y, rounding_mode="trunc"), lambda x, y: x.fmod(y),
    ]  # fmt: skip
    for dtype in INTEGERS:
        x, y = torch.tensor([5, 0, torch.iinfo(dtype).min], dtype=dtype), torch.ones(3, dtype=dtype)
        engine = tilewright.compile(Functions(functions).eval(), (x, y))
        assert all(not result.any() for result in engine(x, y * 0))


def test_whole_powers_with_negative_exponents():
    x, y = torch.tensor([1, -1, 2, 5, -1, 3]), torch.tensor([-1, -1, -1, 0, -2, 2])
    constant = torch.tensor([-1, -1, -1, 0, -2, 2])
    check(
        [
            lambda x, y: x**y,
            lambda x, y: x**constant,
            lambda x, y: 2**y,
            lambda x, y: x.to(torch.int8) ** y.to(torch.int8),
        ],
        x,
        y,
    )


def test_extremes_of_booleans():
    functions: list[Function] = [
        lambda x: (x > 0).amax(1), lambda x: (x > 0).amin(0), lambda x: (x > 0).max(), lambda x: (x > 0).any(0),
        lambda x: (x > 0).all(1), lambda x: list((x > 0).max(0)), lambda x: (x > 0).cumsum(0), lambda x: (x > 0).sum(1),
    ]  # fmt: skip
    sizes = [(torch.randn(n, 5000),) for n in (1, 4)]
    check(functions, torch.randn(3, 5000), dynamic={"x": {0: ("n", 1, 4)}}, sizes=sizes)


def test_padding_of_a_dynamic_axis_with_its_edges():
    sizes = [(torch.randn(1, 3, n),) for n in (1, 2, 32)]
    pads = [lambda x: torch.nn.functional.pad(x, (2, 3), mode="replicate")]
    check(pads, torch.randn(1, 3, 5), dynamic={"x": {2: ("n", 1, 32)}}, sizes=sizes)


def test_scales_stay_after_a_cast_that_loses_numbers():
    # sums that float32 has exactly, in any order, and float16 has not
    weight, scale = torch.randint(-16, 17, (4, 3, 3, 3)) / 16, torch.randint(2, 9, (4, 1, 1))
    convolve = lambda x: torch.nn.functional.conv2d(x, weight)  # noqa: E731
    check(
        [
            lambda x: convolve(x).to(torch.int32) * scale,
            lambda x: convolve(x).to(torch.float16).float() * scale.float(),
        ],
        torch.randint(-64, 65, (1, 3, 6, 6)) / 4,
    )


def test_gelu_of_large_negative_numbers_vanishes():
    x = torch.tensor([-6.0, -10.0, -100.0, -65504.0, -1e30, 1e30, 8.0])
    engine = tilewright.compile(Functions([torch.nn.functional.gelu, torch.erf]).eval(), (x,))
    gelu, erf = engine(x)
    torch.testing.assert_close(gelu, torch.tensor([0.0, 0, 0, 0, 0, 1e30, 8]), rtol=1e-6, atol=1e-8)
    assert torch.equal(erf, x.sign())


def test_the_complement_of_erf_keeps_its_digits():
    x = torch.tensor([-3.0, 0.0, 0.5, 2.0, 5.0, 9.0])
    engine = tilewright.compile(lambda x: torch.erfc(x), (x,))
    torch.testing.assert_close(engine(x), torch.erfc(x), rtol=1e-5, atol=1e-38)


def test_a_quotient_rounded_to_zero_has_its_sign():
    x, y = torch.tensor([1.0, -1.0, 1.0, 0.0, -0.0]), torch.tensor([2.0, -2.0, 3.0, -2.0, 2.0])
    engine = tilewright.compile(lambda x, y: torch.floor_divide(x, y), (x, y))
    assert torch.equal(torch.signbit(engine(x, y)), torch.signbit(x // y))


def test_narrow_floats_are_rounded_before_they_are_truncated():
    x = torch.tensor([0.03, 0.02, 1.0]).bfloat16()
    check([lambda x: x.cos().to(torch.int32), lambda x: x.half().cos().to(torch.int64)], x)


def test_sines_moved_out_of_loops():
    positions = torch.arange(6.0)

    def embeddings(x):
        angles = positions[:, None] * 0.37
        return x + torch.cat([angles.sin(), angles.cos()], 1)

    def padded(x):
        return torch.nn.functional.pad(x[:, :1], (0, 0, 1, 2)).sin()[None].expand(4, -1, 5) / 3

    check([embeddings, padded, lambda x: x[:, :1].sin().expand(6, 40) + x[:, :1].cos()], torch.randn(6, 2) * 1e6)


def test_numbers_outside_of_an_integer_type_wrap():
    functions: list[Function] = [
        lambda x: torch.full_like(x, -1),
        lambda x: torch.full_like(x, 255) + x,
        lambda x: torch.where(x > 2, torch.full_like(x, -2), x),
    ]
    check(functions, torch.arange(7, dtype=torch.uint8))


def test_attention_by_hand_over_heads_of_a_dynamic_width():
    def attend(x):
        return (x @ x.transpose(-1, -2) / 2.0).softmax(-1) @ x

    for shape in ((4, 3, 5), (2, 3, 4, 5)):
        sizes = [(torch.randn(*shape[:-1], n),) for n in (1, 2, 8)]
        check([attend], torch.randn(shape), dynamic={"x": {len(shape) - 1: ("n", 1, 8)}}, sizes=sizes)


def test_one_number_for_all_lanes_under_a_condition_on_rows():
    check([lambda x, y: torch.stack([y.expand(2, 1), x]).relu().abs().amax((0, 2)).trunc()],
          torch.tensor([[1.5], [-2.0]]), torch.tensor([3.0]))  # fmt: skip
    pad = torch.nn.functional.pad
    check([lambda x: pad(x.expm1(), (0, 0, 2, -1)).permute(2, 1, 0)], torch.randn(3, 33, 5),
          dynamic={"x": {0: ("n", 1, 9)}}, sizes=[(torch.randn(n, 33, 5),) for n in (1, 2, 9)])  # fmt: skip


def test_functions_of_numbers_whose_powers_overflow():
    """Against float64: PyTorch's own vectors overflow a little early on some CPUs."""
    numbers = [0.0, -0.0, 1e-20, 0.3, -2.0, 40.0, 88.9, -89.2, 113.75, -101.9, 1e4, 1e30, -1e30]
    functions: list[Function] = [
        torch.sinh,
        torch.cosh,
        torch.asinh,
        torch.exp2,
        torch.acosh,
        lambda x: torch.acosh(1 + x.abs()),
    ]
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([*numbers, INFINITY, -INFINITY, NAN], dtype=dtype)
        expected = Functions(functions)(x.double())
        for result, value in zip(tilewright.compile(Functions(functions).eval(), (x,))(x), expected, strict=True):
            torch.testing.assert_close(result, value.to(dtype), equal_nan=True, rtol=1e-5, atol=1e-6)
    check([torch.exp2], torch.tensor([113.5, -100.5, 8.0, INFINITY], dtype=torch.bfloat16))


def test_signs_of_zeros():
    x = torch.tensor([0.0, -0.0, -4.0, 4.0, -2.5])
    functions: list[Function] = [
        lambda x: 1 / torch.fmod(x, 2),
        lambda x: 1 / torch.remainder(x, 2),
        lambda x: 1 / torch.sinh(x),
        lambda x: 1 / torch.asinh(x),
    ]
    check(functions, x)


def test_interpolation_starts_from_the_nearer_end():
    x, y = torch.tensor([1e30, -3.0, INFINITY, 7.0]), torch.tensor([1.0, 1e-9, 2.0, NAN])
    check([lambda x, y, w=w: torch.lerp(x, y, w) for w in (0.0, 0.25, 0.5, 1.0, 1.5, -1.0)], x, y)
    check([lambda x, y: torch.lerp(x, y, torch.tensor([1.0, 0.9, 0.1, 1.0]))], x, y)


def test_sine_positions_of_masks():
    """Positions counted along both axes of a mask, scaled, sines and cosines interleaved, as detection models do."""

    def positions(mask):
        parts = []
        for axis in (1, 2):
            counted = mask.cumsum(axis, dtype=torch.float32)
            scaled = counted / (counted.amax(axis, keepdim=True) + 1e-6) * 2 * math.pi
            steps = 10000 ** (2 * torch.div(torch.arange(8.0), 2, rounding_mode="floor") / 8)
            angles = scaled[..., None] / steps
            parts.append(torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), 4).flatten(3))
        return torch.cat(parts, 3).permute(0, 3, 1, 2)

    sizes = [(torch.rand(n, 6, 7) > 0.2,) for n in (1, 2, 5)]
    check([positions], torch.ones(3, 6, 7, dtype=torch.bool))
    check([positions], torch.ones(3, 6, 7, dtype=torch.bool), dynamic={"x": {0: ("n", 1, 5)}}, sizes=sizes)


def test_buckets_of_relative_positions():
    """Truncated logarithms: distances of 16, 32 and 64 lie where one bucket ends and the next begins."""

    def buckets(x):
        distance = x.abs()
        far = 8 + (torch.log(distance.float() / 8) / math.log(16) * 8).to(torch.long)
        far = torch.min(far, torch.full_like(far, 15))
        return (x > 0) * 16 + torch.where(distance < 8, distance, far)

    x = torch.arange(-300, 300)
    check([buckets], x)
    check([buckets], x, dynamic={"x": {0: ("n", 1, 600)}}, sizes=[(x[:1],), (x[:317],)])


def test_truth_over_gathered_axes():
    functions: list[Function] = [
        lambda x, y: (x[y] > 1).any(0), lambda x, y: (x[y] > 0).all(1), lambda x, y: (x.index_select(0, y) > 1).any(1),
        lambda x, y: (x[y] > 1).any(), lambda x, y: torch.gather(x > 1, 0, y[:, None].expand(-1, 5)).any(0),
    ]  # fmt: skip
    sizes = [(torch.randn(4, 5), torch.randint(0, 4, (n,))) for n in (1, 2, 9)]
    check(functions, torch.randn(4, 5), torch.tensor([0, 3, 1]), dynamic={"y": {0: ("n", 1, 9)}}, sizes=sizes)


class Samples(torch.nn.Module):
    """An image sampled in every mode with every padding."""

    WAYS = tuple(itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")))

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.nn.functional.grid_sample(x, grid, *way, align_corners=False) for way in self.WAYS)


def test_places_that_are_no_numbers() -> None:
    """Grids with NaN and infinities: no index leaves the image, and the numbers are PyTorch's."""
    places = (math.nan, math.inf, -math.inf, 3e38, -1.0, 0.3)
    x = torch.arange(1, 13.0).reshape(1, 1, 3, 4)
    grid = torch.tensor(list(itertools.product(places, places))).reshape(1, 6, 6, 2)
    graph = import_model(Samples().eval(), (x, grid))
    inputs = {value.name: tensor.numpy() for value, tensor in zip(graph.inputs, (x, grid), strict=True)}
    for found in (reference.run(graph, inputs, np.float32), build(graph, "cpu").run(inputs)):
        for way, wanted, result in zip(Samples.WAYS, Samples()(x, grid), found.values(), strict=True):
            np.testing.assert_allclose(result, wanted.numpy(), rtol=1e-5, atol=1e-5, err_msg=str(way))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_labels_after_the_end_do_not_count(reduction: str) -> None:
    labels = torch.tensor([[2, 0, -1, 3, 1], [-1, 1, 2, 0, 4], [4, 3, 2, 1, 0]])
    loss = torch.nn.MultiLabelMarginLoss(reduction=reduction)
    x = torch.randn(3, 5)
    torch.testing.assert_close(tilewright.compile(loss, (x, labels))(x, labels), loss(x, labels))
    torch.testing.assert_close(tilewright.compile(loss, (x[0], labels[0]))(x[0], labels[0]), loss(x[0], labels[0]))


@pytest.mark.parametrize("effort", [0, 1])
def test_zeros_keep_the_sign_that_pytorch_gives_them(effort):
    """Where PyTorch's vector and scalar code agree: bounds leave zeros as they are, and functions through 0 are odd."""
    functions = [
        torch.relu, lambda x: x.clamp(-1, 0), lambda x: x.clamp_min(0), torch.nn.functional.relu6,
        torch.nn.functional.elu, torch.nn.functional.selu, torch.nn.functional.celu, torch.nn.functional.mish,
    ]  # fmt: skip
    x = torch.tensor([0.0, -0.0] * 16 + [-0.0])
    results = tilewright.compile(Functions(functions).eval(), (x,), effort=effort)(x)
    for function, result in zip(functions, results, strict=True):
        assert torch.equal(torch.signbit(result), torch.signbit(function(x))), function


def test_what_code_asks_of_a_size_that_two_inputs_have_holds_for_both():
    """What the code asks of the second input's size holds for the first, though the export has a symbol for each."""
    axes = {"x": {0: ("n", 1, 9)}, "y": {0: ("n", 1, 9)}}
    x, y = torch.randn(2), torch.randn(2)
    model = Functions([lambda x, y: x * 2, lambda x, y: y[-100:3]]).eval()
    engine = tilewright.compile(model, (x, y), dynamic_shapes=axes, effort=0)
    for n in (2, 5):
        x, y = torch.randn(n), torch.randn(n)
        assert [result.tolist() for result in engine(x, y)] == [result.tolist() for result in model(x, y)]
    axes = {"x": {0: ("n", 1, 90)}, "y": {0: ("n", 1, 90)}}
    with pytest.raises(ImportModelError, match=r"takes no range of n: .* for 5, .*Eq\(n, 5\)"):
        import_model(Functions([lambda x, y: x * 2, lambda x, y: y.unbind(0)[-1]]).eval(), (x, y), axes)
