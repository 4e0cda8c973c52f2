"""The backend tests of the installed onnx package as a target of tools/fuzz: a case is one test, run as it is.

python -m tools.fuzz run tools.onnx_backend --cases 2034
python tools/onnx_backend.py            # lists what is refused or wrong, by the reference alone, without compiling
"""

from __future__ import annotations

import collections
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.errors import TilewrightError, UnsupportedOperationError
from tilewright.graph import reference
from tilewright.graph.core import Graph
from tilewright.importers.onnx import import_onnx
from tilewright.onnx import backend
from tilewright.onnx.specialized import bound, specialized
from tools.fuzz.target import Base, Failed

KINDS = ("simple", "pytorch-operator", "pytorch-converted")


@dataclass
class Test:
    """A model with its inputs and the outputs that the test expects."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]
    outputs: list[Any]
    rtol: float
    atol: float

    @property
    def operations(self) -> str:
        """The operations of the model, for messages."""
        return ", ".join(sorted({node.op_type for node in self.model.graph.node}))


@lru_cache
def tests() -> list[Test]:
    """All tests that need no download, in an order that is the same everywhere."""
    from onnx.backend.test.case.node import collect_testcases

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            inputs, outputs = case.data_sets[0]
            found.append(Test(case.name, case.model, list(inputs), list(outputs), case.rtol or 1e-3, case.atol or 1e-7))
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in KINDS:
        found += [_stored(folder) for folder in sorted((root / kind).iterdir())]
    return found


def _stored(folder: Path) -> Test:
    model = onnx.load(folder / "model.onnx")
    data = folder / "test_data_set_0"
    sides = []
    for side, entries in (("input", model.graph.input), ("output", model.graph.output)):
        files = sorted(data.glob(f"{side}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
        sides.append([_read(path, entry) for path, entry in zip(files, entries, strict=False)])
    return Test(folder.name, model, *sides, 1e-3, 1e-7)


def _read(path: Path, entry: onnx.ValueInfoProto) -> Any:
    kind = entry.type.WhichOneof("value")
    found = {"tensor_type": onnx.TensorProto, "sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    message = found[kind]()
    message.ParseFromString(path.read_bytes())
    return message


def _array(item: Any) -> Any:
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    if isinstance(item, onnx.SequenceProto):
        return numpy_helper.to_list(item)
    if isinstance(item, onnx.OptionalProto):
        return numpy_helper.to_optional(item)
    return item if isinstance(item, list) or item is None else np.asarray(item)


def _tolerance(test: Test, wanted: np.ndarray) -> tuple[float, float]:
    """The test's own, and three roundings of the type relative to the largest number: they have their own noise."""
    if wanted.dtype.kind not in "fV" or wanted.dtype.itemsize < 2 or not wanted.size:
        return test.rtol, test.atol
    step = 3 * float(ml_dtypes.finfo(wanted.dtype).eps)
    largest = np.max(np.abs(wanted.astype(np.float64)), initial=0, where=np.isfinite(wanted))
    return max(test.rtol, step), max(test.atol, step * float(largest))


def _pairs(results: list[Any], wanted: list[Any], test: Test) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The arrays of results and of what is expected; those of lists one by one."""
    for found, expected in zip(results, wanted, strict=True):
        if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
            yield from _pairs(found, expected, test)
        elif expected is None or isinstance(expected, list) or found is None or isinstance(found, list):
            if found is not expected:
                raise Failed("wrong", f"{test.name}: {found}, expected {expected}", test.name)
        else:
            yield found, expected if expected.dtype.kind not in "UO" else expected.astype(object)


def compare(test: Test, results: list[Any]) -> None:
    """Raise `Failed` where results differ from the expected ones by more than the test allows."""
    for number, (found, wanted) in enumerate(_pairs(results, list(map(_array, test.outputs)), test)):
        found = np.asarray(found)
        if found.shape != np.shape(wanted) or found.dtype != wanted.dtype:
            problem = (
                f"output {number} is {found.dtype}{list(found.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
            )
            raise Failed("wrong", f"{test.name}: {problem}", test.name)
        if wanted.dtype.kind == "O":
            if not np.array_equal(found, wanted):
                raise Failed("wrong", f"{test.name}: output {number} is {found}, expected {wanted}", test.name)
            continue
        rtol, atol = _tolerance(test, wanted)
        left, right = (item.astype(np.float64) if item.dtype.kind in "fV" else item for item in (found, wanted))
        if not np.allclose(left, right, rtol=rtol, atol=atol, equal_nan=True):
            raise Failed("wrong", f"{test.name}: output {number} is {left}, expected {right}", test.name)


def _compare_random(test: Test, results: list[Any]) -> None:
    """Raise `Failed` unless results are zeros and ones of the expected shapes and types: their numbers are random."""
    for found, wanted in zip(results, map(_array, test.outputs), strict=True):
        if found.shape != wanted.shape or found.dtype != wanted.dtype or not np.isin(found, (0, 1)).all():
            raise Failed("wrong", f"{test.name}: {found}, expected zeros and ones of {wanted.dtype}", test.name)


class Target(Base):
    seconds = 240.0
    compiled = True

    def prepare(self, folder: Path) -> None:
        """Collect the tests before the first one's time begins: that alone may take a minute on a busy machine."""
        tests()

    def run(self, seed: int) -> str:
        test = tests()[seed % len(tests())]
        arrays = [_array(item) for item in test.inputs]
        names = [entry.name for entry in test.model.graph.input]
        try:
            if self.compiled:
                rep = backend.prepare(test.model)
                known = [spec.name for spec in rep.engine.inputs if spec.name in names]  # a seed may be left out
                feeds = {name: arrays[names.index(name)] for name in known}
                results = dict(enumerate(rep.run(feeds)))
            else:
                graph = _imported(test.model, dict(zip(names, arrays, strict=False)))
                feeds = {
                    value.name: arrays[names.index(value.name)]
                    if value.name in names
                    else np.zeros([int(size) for size in value.shape], value.dtype.numpy)  # type: ignore[call-overload]
                    for value in graph.inputs
                }
                results = reference.run(graph, feeds, dtype=None)
        except TilewrightError as error:
            self.reason = str(error)
            return f"refused: {test.operations}"
        if test.name.startswith("test_bernoulli"):  # drawn without a seed, "for informational purpose"
            _compare_random(test, list(results.values()))
            return "random: shape, type and range are right"
        compare(test, list(results.values()))
        return "right"


def _imported(model: onnx.ModelProto, arrays: dict[str, Any]) -> Graph:
    """The graph; where it is refused, that for the values of the small inputs, as a session compiles it."""
    try:
        return import_onnx(model)
    except UnsupportedOperationError as error:
        engine = specialized(model, "cpu", None, error)
        return import_onnx(bound(model, engine.values(arrays)))


TARGET = Target()


def main() -> int:
    """Print every test that the reference refuses or answers wrongly, and the counts."""
    target, counts = Target(), collections.Counter[str]()
    target.compiled = False
    for number, test in enumerate(tests()):
        try:
            label = target.run(number)
        except Failed as failure:
            label = f"wrong: {failure.text[:300]!r}"
        except Exception as error:
            label = f"uncaught: {type(error).__name__}: {str(error)[:200]}"
        counts[label.split(":")[0]] += 1
        if label != "right":
            reason = target.reason.split("\n", 1)[-1].strip()[:160] if label.startswith("refused") else ""
            print(f"{test.name}: {label} {reason!r}")
    print(dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
