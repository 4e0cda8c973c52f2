"""The fuzz of PyTorch programs takes what other roundings explain, and finds what they do not."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tools.fuzz.programs.compare import Reference
from tools.fuzz.programs.operations import weights
from tools.fuzz.programs.program import Argument, Program, Step
from tools.fuzz.target import Failed


def reference(name, x, *parameters):
    """The reference of one operation on one input."""
    program = Program([Argument(tuple(x.shape), x.dtype, "normal")], [Step(name, (0,), parameters)])
    return Reference(program, [x])


def right(expected, result):
    try:
        expected.check((result,), "v1 = operation\nreturn v1")
    except Failed:
        return False
    return True


@pytest.mark.parametrize("count", [3, 100, 1000, 2500])
@pytest.mark.parametrize("kind", ["mixed", "positive", "equal"])
def test_sums_in_another_order_and_sums_without_a_term(rng, count, kind):
    x = rng.standard_normal(count).astype(np.float32)
    x = {"mixed": x, "positive": np.abs(x) + 0.5, "equal": np.full(count, 0.7, np.float32)}[kind]
    expected = reference("sum", torch.from_numpy(x), (0,), False)
    in_sequence = np.add.accumulate(x)[-1]
    assert right(expected, torch.tensor(in_sequence))
    largest = np.abs(x).argmax()
    assert not right(expected, torch.tensor(in_sequence - x[largest]))


def test_products_with_weights_that_are_off_by_one_place_of_bfloat16(rng):
    x = torch.from_numpy(rng.standard_normal((33, 17)).astype(np.float32))
    expected = reference("linear", x, 8)
    weight, bias = weights(x, 8, 17), weights(x, 8)
    assert right(expected, F.linear(x.flip(-1), weight.flip(-1), bias))
    assert not right(expected, F.linear(x, weight * (1 + 2**-8), bias))


@pytest.mark.parametrize("number", [0.1, 0.73, 1.9])
def test_layer_norm_of_equal_numbers(number):
    x = torch.full((4, 33), number)
    expected = reference("layer_norm", x)
    residue = number * 2**-24 / 1e-5**0.5  # of a mean that is half a unit off
    assert right(expected, torch.full((4, 33), residue))
    assert not right(expected, torch.full((4, 33), 1e-2))


def test_layer_norm_of_equal_numbers_may_be_nothing():
    x = torch.full((3, 2), -0.69, dtype=torch.bfloat16)
    program = Program([Argument((3, 2), x.dtype, "")], [Step("layer_norm", (0,), ()), Step("any", (1,), (1, False))])
    assert right(Reference(program, [x]), torch.zeros(3, dtype=torch.bool))
    ordinary = torch.tensor([[0.5, 0.7]] * 3, dtype=torch.bfloat16)
    assert not right(Reference(program, [ordinary]), torch.zeros(3, dtype=torch.bool))


def test_numbers_cast_to_a_narrow_type_may_stay_wide():
    """A kernel that reads them has them in float32, in which e**12 is no infinity."""
    steps = [Step("cast", (0,), (torch.float16, False)), Step("exp", (1,), ()), Step("sub", (2, 2), ())]
    expected = Reference(Program([Argument((2,), torch.int8, "")], steps), [torch.tensor([12, 3], dtype=torch.int8)])
    assert right(expected, torch.zeros(2, dtype=torch.float16))
    assert not right(expected, torch.tensor([0.0, torch.nan], dtype=torch.float16))


def test_near_a_pole_of_an_uncertain_number_anything_may_come_out():
    """Many runs show that; few of them lie together by chance."""
    steps = [Step("sum", (0,), ((0,), False)), Step("tan", (1,), ())]
    program = Program([Argument((50,), torch.float32, "")], steps)
    x = torch.linspace(1, 2, 50)
    assert right(Reference(program, [x * 3e5]), torch.tensor(-150.0))
    assert not right(Reference(program, [x]), torch.tensor(-150.0))


@pytest.mark.parametrize("factor", [1e30, 1e-30])
def test_squares_outside_of_float32(factor):
    x = torch.arange(6.0) * factor
    expected = reference("std_of", x, (0,), 1, False)
    assert right(expected, x.std())
    assert right(expected, ((x - x.mean()) ** 2).mean().sqrt())
    ordinary = reference("std_of", x / factor, (0,), 1, False)
    assert not right(ordinary, torch.tensor(torch.inf)) and not right(ordinary, torch.tensor(0.0))


def test_zeros_next_to_factors_that_overflow():
    """NaN or 0, by the order of the factors; an ordinary product with a zero is 0."""
    expected = reference("prod", torch.tensor([0.0, *[1e15] * 3]), 0, False)
    assert right(expected, torch.tensor(0.0)) and right(expected, torch.tensor(torch.nan))
    ordinary = reference("prod", torch.tensor([0.0, 2.0, 3.0]), 0, False)
    assert not right(ordinary, torch.tensor(torch.nan))


def test_numbers_below_the_least_normal_one_of_a_narrow_type():
    """Kernels may leave a cast to float16 out, whose numbers lie 2**-24 apart there."""
    program = Program([Argument((1,), torch.float16, "normal")], [Step("cast", (0,), (torch.float64, False))])
    expected = Reference(program, [torch.tensor([1.25e-6], dtype=torch.float16)])
    assert right(expected, torch.tensor([1.23e-6], dtype=torch.float64))
    assert not right(expected, torch.tensor([2e-6], dtype=torch.float64))


def test_keys_that_no_query_sees_add_nothing_or_nan():
    x = torch.linspace(-1, 1, 24).reshape(1, 3, 8)
    x[0, 2, 5] = torch.nan
    expected = reference("attention_causal", x)
    nothing = F.scaled_dot_product_attention(x[:, :2], x[:, :2] * 2, x[:, :2], is_causal=True)
    result = torch.full_like(x, torch.nan)
    assert right(expected, result)
    result[:, :2] = nothing
    assert right(expected, result)
    result[0, 2, 0] = 1.0  # this query sees the NaN
    assert not right(expected, result)


def test_products_that_are_added_before_they_are_rounded():
    x = torch.tensor([[3e38, -3e38], [3e38, 3e38]])
    expected = reference("gram", x)
    infinite = torch.full((2, 2), torch.inf)
    assert right(expected, x @ x.T)  # NaN where infinities of either sign meet
    assert right(expected, torch.where(torch.eye(2, dtype=torch.bool), infinite, torch.inf))
    assert not right(reference("gram", x / 3e38), infinite)


def test_variance_of_equal_numbers_may_be_nothing():
    x = torch.full((5, 9), 0.1, dtype=torch.float64)
    expected = reference("var_of", x, (0, 1), 0, False)
    assert right(expected, torch.zeros((), dtype=torch.float64))
    assert not right(expected, torch.tensor(1e-9, dtype=torch.float64))


def test_whole_numbers_get_the_type_of_the_result_first():
    halves, whole = torch.tensor([-0.0004], dtype=torch.float16), torch.tensor([10**8])
    program = Program(
        [Argument((1,), torch.float16, "normal"), Argument((1,), torch.int64, "full")], [Step("mul", (0, 1), ())]
    )
    expected = Reference(program, [halves, whole])
    assert right(expected, torch.tensor([-torch.inf], dtype=torch.float16)) and right(expected, halves * whole)


@pytest.mark.parametrize("operation", ["conv", "mm", "sum", "conv_mixed"])
def test_terms_that_cancel_leave_the_rounding_of_each(operation):
    """Products that cancel leave what rounding one of them and not the other leaves, which a norm makes larger."""
    x = torch.tensor([[0.3, 0.7, -1.1]])
    weight = torch.tensor([[[0.7], [-0.7]]])

    class Cancelled(torch.nn.Module):
        def forward(self, x):
            pair = torch.stack([x, x * 1.0], 1)
            if operation == "sum":
                found = (pair * weight.reshape(1, 2, 1)).sum(1)
            elif operation == "mm":
                found = pair.transpose(1, 2) @ weight[0]
            else:
                found = F.conv1d(pair, weight * (1 if operation == "conv" else 1.5))
            return (F.rms_norm(found, found.shape[-1:]),)

    expected = Reference(Cancelled(), [x])
    rest = (0.3 * 0.7) * 2**-24 / torch.finfo(torch.float32).eps ** 0.5
    assert expected.plain[0].abs().max() <= 4 * rest  # 0 on most processors
    assert right(expected, torch.full_like(expected.plain[0], rest))
    assert not right(expected, torch.full_like(expected.plain[0], 300 * rest))
