"""PyTorch's composite operators, which imports list once: the same as PyTorch's own list and tables."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import fake_impls  # noqa: E402
from torch.export import exported_program  # noqa: E402

from tilewright.importers import torch_operators  # noqa: E402
from tilewright.importers.torch_export import decompositions  # noqa: E402

# PyTorch's own, as they are when this file is read: tests run with those of imports.
OVERRIDE = exported_program._override_composite_implicit_decomp
SPLIT = exported_program._split_decomp_table_to_cia_and_python_decomp


def state(operators: Any) -> dict[Any, Any]:
    """Which keys each operator has entries for, what it decomposes to, and whether a tensor without memory has a
    rule of its own for it."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    rules = fake_impls.op_implementations_dict
    return {each: (set(each.py_kernels), each.py_kernels.get(composite), each in rules) for each in operators}


def test_tables_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_impls, "op_implementations_dict", dict(fake_impls.op_implementations_dict))
    parts = torch_operators._parted(decompositions())
    assert parts == SPLIT(decompositions()) and parts == torch_operators._parted(decompositions())
    assert parts != torch_operators._parted({}) == SPLIT({})
    before = state(parts[0])
    with torch_operators._overridden(parts[0]):
        inside = state(parts[0])
    assert state(parts[0]) == before != inside
    with OVERRIDE(parts[0]):  # last: PyTorch forgets rules that it did not add
        assert state(parts[0]) == inside


def test_operators_of_libraries_that_come_later_are_listed() -> None:
    before = torch_operators._collected()
    with torch.library._scoped_library("tilewright_test_operators", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x + x, "CompositeImplicitAutograd")
        (added,) = torch_operators._collected() - before
        assert added is torch.ops.tilewright_test_operators.doubled.default
    assert torch_operators._collected() == before


def test_failures_leave_the_tables_as_they_were() -> None:
    operators = [torch.ops.aten.linear.default, torch.ops.aten.matmul.default]
    before = state(operators)
    with pytest.raises(ZeroDivisionError), torch_operators._overridden(dict.fromkeys(operators, print)):
        _ = 1 / 0
    assert state(operators) == before
