"""Operations on lists of tensors (``torch._foreach_add``)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tests.host.compile_support import compiled, fresh  # noqa: E402, F401
from tilewright.importers.torch_lists import each_of_lists  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_engines")


def drawn(parameter: Any, dtype: Any) -> Any:
    kind = str(parameter.type)
    if kind == "List[Tensor]":
        return [(torch.rand(3, 3) * 3 + 1).to(dtype) for _ in range(2)]
    if kind == "Tensor":
        return torch.tensor(2).to(dtype)
    return [2, 3] if kind.startswith("List") else 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_each_tensor_has_what_pytorch_gives_it(dtype: Any) -> None:
    compared = 0
    for operation, by_elements in each_of_lists().items():
        parameters = [each for each in operation._schema.arguments if not each.kwarg_only]
        arguments = [drawn(each, dtype) for each in parameters if each.name not in ("dtype", "non_blocking")]
        try:
            wanted = operation(*arguments)
        except RuntimeError:  # not for integers
            continue
        found = list(by_elements(*arguments))
        torch.testing.assert_close(found, list(wanted), equal_nan=True, msg=str(operation))
        compared += 1
    assert compared > 30


def updated(x: torch.Tensor, y: torch.Tensor) -> Any:
    sums = torch._foreach_add([x, y], [y, x], alpha=2)
    torch._foreach_mul_(sums, [0.5, 3.0])
    return torch._foreach_addcmul(sums, [x, y], [y, y], value=0.5) + torch._foreach_norm(sums)


def test_lists_in_engines() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for run in (tilewright.compile(updated, (x, y)), compiled(updated, fullgraph=True)):
        for found, wanted in zip(run(x, y), updated(x, y), strict=True):
            torch.testing.assert_close(torch.as_tensor(found), wanted, rtol=1e-5, atol=1e-5)
