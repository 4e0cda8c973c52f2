"""Einstein summation as permutes, reductions and one matrix product for each pair of operands."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import Size, product


def einsum(emit: Emitter, equation: str, operands: Sequence[Value]) -> Value:
    """``einsum("bhqd,bhkd->bhqk", [q, k])``; operands are combined from left to right.

    A label that repeats inside one operand takes its diagonal.
    """
    inputs, output = _parse(equation, operands)
    pairs = [_diagonals(emit, value, labels) for value, labels in zip(operands, inputs, strict=True)]
    operands, inputs = [value for value, _ in pairs], [labels for _, labels in pairs]
    total, labels = operands[0], inputs[0]
    for index, (value, others) in enumerate(zip(operands[1:], inputs[1:], strict=True), start=2):
        later = set(output).union(*inputs[index:])
        total, labels = _pair(emit, total, labels, value, others, later)
    total, labels = _sum_out(emit, total, labels, set(output))
    return emit.permute(total, [labels.index(label) for label in output])


def _parse(equation: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    """Labels of each operand and of the result; the dimensions of an ellipsis get capital letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise Unsupported(f"einsum {equation!r} with {len(operands)} operands")
    if not arrow:
        right = "".join(sorted(label for label in set(left) if label.isalpha() and left.count(label) == 1))
        right = "..." + right if "..." in left else right
    free = [letter for letter in "ZYXWVUTSRQ" if letter not in equation]
    counts = [value.rank - len(term.replace("...", "")) for term, value in zip(terms, operands, strict=True)]
    letters = set(left.replace("...", "").replace(",", "") + right.replace("...", ""))
    output_labels = right.replace("...", "")
    if not all(label.isascii() and label.isalpha() for label in letters) or (arrow and "->" in right):
        raise Unsupported(f"einsum {equation!r}: labels must be letters")
    if len(set(output_labels)) != len(output_labels) or set(output_labels) - set(left):
        raise Unsupported(f"einsum {equation!r}: a label of the result that repeats, or that no operand has")
    if any(term.count(".") not in (0, 3) for term in [*terms, right]) or min(counts) < 0:
        raise Unsupported(f"einsum {equation!r} for operands of {[value.rank for value in operands]} dimensions")
    width = max((count for term, count in zip(terms, counts, strict=True) if "..." in term), default=0)
    if width > len(free):
        raise Unsupported(f"einsum {equation!r} for operands of {[value.rank for value in operands]} dimensions")
    extra = "".join(free[:width][::-1])
    result = []
    for term, value, count in zip(terms, operands, counts, strict=True):
        term = term.replace("...", extra[len(extra) - count :]) if "..." in term else term
        if len(term) != value.rank:
            raise Unsupported(f"einsum {equation!r}: a wrong rank")
        result.append(term)
    return result, right.replace("...", extra)


def _diagonals(emit: Emitter, value: Value, labels: str) -> tuple[Value, str]:
    """An operand without labels that repeat: the elements at which both dimensions have one position."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            size = value.shape[first]
            if value.shape[second] != size:
                raise Unsupported(f"einsum: the label {label!r} stands for {size} and {value.shape[second]}")
            line = emit.iota(size)
            places = emit.reshape(line, [size if axis == first else 1 for axis in range(value.rank)])
            shape = [1 if axis == second else extent for axis, extent in enumerate(value.shape)]
            diagonal = emit.op("gather_elements", value, emit.broadcast(places, shape), axis=second)
            value = emit.reshape(diagonal, [extent for axis, extent in enumerate(shape) if axis != second])
            labels = labels[:second] + labels[second + 1 :]
    return value, labels


def _sum_out(emit: Emitter, value: Value, labels: str, needed: set[str]) -> tuple[Value, str]:
    """Sum over the dimensions whose labels nobody needs any more."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    if not axes:
        return value, labels
    value = emit.op("reduce_sum", value, axes=axes, keepdims=False)
    return value, "".join(label for label in labels if label in needed)


def _pair(
    emit: Emitter, left: Value, left_labels: str, right: Value, right_labels: str, later: set[str]
) -> tuple[Value, str]:
    """One product: shared kept labels are batch, shared dropped ones are summed."""
    left, left_labels = _sum_out(emit, left, left_labels, later | set(right_labels))
    right, right_labels = _sum_out(emit, right, right_labels, later | set(left_labels))
    shared = [label for label in left_labels if label in right_labels]
    batch = [label for label in shared if label in later]
    summed = [label for label in shared if label not in later]
    rows = [label for label in left_labels if label not in shared]
    columns = [label for label in right_labels if label not in shared]
    sizes: dict[str, Size] = dict(zip(left_labels, left.shape, strict=True))
    sizes.update({label: size for label, size in zip(right_labels, right.shape, strict=True) if size != 1})

    def arrange(value: Value, labels: str, first: list[str], second: list[str]) -> Value:
        order = batch + first + second
        value = emit.permute(value, [labels.index(label) for label in order])
        lead, split = value.shape[: len(batch)], len(batch) + len(first)
        return emit.reshape(value, (*lead, product(value.shape[len(batch) : split]), product(value.shape[split:])))

    result = emit.op("matmul", arrange(left, left_labels, rows, summed), arrange(right, right_labels, summed, columns))
    order = batch + rows + columns
    return emit.reshape(result, [sizes[label] for label in order]), "".join(order)
