"""Models whose structure depends on the values of small inputs, or on sizes: an engine for each set of them.

Some operations need a number when the model is compiled (the step of a window, a kind of dropout).  Where a model gives
it as an input, the model cannot become one engine; a session, which has the compiler at hand, makes one for the values
that come.  Likewise for sizes that the one engine does not take: of a dimension of 1, which then is stretched to
another, or which an operation drops, so that a result has fewer dimensions.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx.shape_inference
from onnx import ModelProto, NodeProto, TensorShapeProto, TypeProto, ValueInfoProto, numpy_helper

from tilewright.api import compile as compile_model
from tilewright.dtypes import ANY_BY_NAME, BY_NAME, string
from tilewright.engine.engine import Engine
from tilewright.errors import EngineError, ImportModelError, ShapeError, TilewrightError, UnsupportedOperationError
from tilewright.importers.onnx import import_onnx
from tilewright.importers.onnx_structure import node_text
from tilewright.importers.onnx_survey import survey
from tilewright.importers.onnx_tensors import ONNX_DTYPES, list_type
from tilewright.importers.report import NO_RULE
from tilewright.importers.shapes import parse_dynamic_shapes, symbol_name
from tilewright.onnx.branches import condition_of, refused_branch, with_branch
from tilewright.onnx.recent import RecentlyUsed
from tilewright.onnx.source import Source
from tilewright.runtime import tensors
from tilewright.runtime.plan import TensorSpec
from tilewright.runtime.seeds import one_seed
from tilewright.runtime.shapes import check_mapping, wrong_names
from tilewright.symbolic import free_symbols

MOST_VALUE_ELEMENTS = 64  # of an input whose value is part of the model
_NAMED = 3  # operations in one message
_TRIED = (2, 17)  # sizes of free dimensions of a model that is refused without them

logger = logging.getLogger("tilewright")

_Fixed = tuple[tuple[str, int, int], ...]  # input, axis, size


class _SeveralEngines(ABC):
    """Engines of one model, with the methods of `Engine` for running. Several threads may call `run` at once."""

    inputs: Sequence[TensorSpec]

    @abstractmethod
    def _for(self, inputs: Mapping[str, Any], threads: int | None) -> _Runner:
        """What runs the model for these inputs, all of its own; made the first time that such come."""

    @abstractmethod
    def _no_file(self) -> str:
        """Why there is no single engine to save, and what to do."""

    def _rest(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs that the engine takes."""
        return inputs

    def _checked(self, inputs: Mapping[str, Any], threads: int | None) -> _Runner:
        check_mapping(inputs, "inputs")
        known = [spec.name for spec in self.inputs]
        if inputs.keys() != set(known):
            raise wrong_names(known, inputs)
        return self._for(inputs, threads)

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, threads: int | None = None
    ) -> dict[str, Any]:
        """As `Engine.run`; compiles the first time that such inputs come. Raises as `tilewright.compile` too."""
        return self._checked(inputs, threads).run(self._rest(inputs), out, threads)

    def profile(self, inputs: Mapping[str, Any], runs: int = 10, threads: int | None = None) -> list[dict[str, Any]]:
        """As `Engine.profile`, for the engine of these inputs."""
        return self._checked(inputs, threads).profile(self._rest(inputs), runs, threads)

    def save(self, path: str | Path) -> NoReturn:
        """Raises `EngineError`: there is no single engine."""
        raise EngineError(f"{path}: {self._no_file()}")


class SpecializedEngine(_SeveralEngines):
    """Engines of a model whose structure depends on the values of small inputs: one for each set of them."""

    def __init__(
        self, model: ModelProto, target: str, dynamic_shapes: Mapping[str, Any] | None, quick_start: bool = False
    ) -> None:
        self._model, self._target, self._quick_start = model, target, quick_start
        self.inputs, self.outputs = _specs(model)
        self._bound = [entry.name for entry in _inputs(model) if _is_small(entry)]
        self.shapes = {name: axes for name, axes in (dynamic_shapes or {}).items() if name not in self._bound}
        self._engines: RecentlyUsed[tuple[Any, ...], _Runner] = RecentlyUsed()

    def _no_file(self) -> str:
        return (
            f"the model has an engine for each set of values of {', '.join(self._bound)}, so that none is the one to "
            "save; make these inputs constants of the model"
        )

    def values(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The values that are part of the model, by input; raises `InputError` and `ShapeError`."""
        found = {}
        for spec in self.inputs:
            if spec.name in self._bound:
                value = inputs[spec.name]
                if tensors.is_torch(value):
                    value = value.cpu()
                array = tensors.as_array(tensors.view(value, spec.name, spec.dtype))
                if array.shape != spec.shape:
                    raise ShapeError(
                        f"input {spec.name!r} has shape {list(array.shape)}, the model takes {list(spec.shape)}"
                    )
                found[spec.name] = array
        return found

    def ones(self) -> dict[str, np.ndarray]:
        """Ones in the place of these values."""
        return _ones(spec for spec in self.inputs if spec.name in self._bound)

    def _rest(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in inputs.items() if name not in self._bound}

    def _for(self, inputs: Mapping[str, Any], threads: int | None) -> _Runner:
        values = self.values(inputs)
        key = tuple((array.dtype.str, array.shape, array.tobytes()) for array in values.values())
        return self._engines.get(key, partial(self._compiled, values))

    def _compiled(self, values: Mapping[str, np.ndarray]) -> _Runner:
        return _runner(Source(bound(self._model, values)), self._target, self.shapes, self._quick_start)


class EnginesOfSizes:
    """Engines for calls whose sizes the engine for all sizes does not take.

    One with the sizes of 0 fixed and the others free comes first, so that a decoder's prompts of any length, before
    which there is nothing, share an engine; then one with those of 0 and 1 fixed; then one for the sizes of the call.
    """

    def __init__(
        self, source: Source, target: str, dynamic_shapes: Mapping[str, Any] | None, expected: bool = False
    ) -> None:
        """`expected`: whether it was told already that there are several engines."""
        self._source, self._target, self._shapes = source, target, dict(dynamic_shapes or {})
        self._level = logging.INFO if expected else logging.WARNING  # of the next engine
        self._engines: RecentlyUsed[_Fixed, _Sized | None] = RecentlyUsed()
        self._at_one: RecentlyUsed[bool, Engine | None] = RecentlyUsed()
        self._declared: dict[str, TensorSpec] | None = None

    def run(
        self, engine: Engine, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, threads: int | None
    ) -> dict[str, Any]:
        """As `engine.run`, the engine for all sizes; compiles when sizes that it does not take first come."""
        try:
            return engine.run(inputs, out, threads)
        except ShapeError as error:
            at_one = self._engine_at_one(engine, error)
            if at_one is not None:
                try:
                    return at_one.run(inputs, out, threads)
                except ShapeError:  # one of several sizes is not 1
                    raise error from None
            known = [spec for spec in engine.inputs if spec.name in inputs]
            *some, every = self._choices(inputs, known, error)
            if every not in self._engines:
                for fixed in some:
                    found = self._engine(fixed, error)
                    if found is not None:
                        try:
                            return found.run(inputs, out, threads)
                        except ShapeError:
                            pass  # these sizes fit no better
            return self._needed(every, error).run(inputs, out, threads)

    def _engine_at_one(self, engine: Engine, error: ShapeError) -> Engine | None:
        """The engine of sizes that only the run knows and that change the number of dimensions by being 1, as they are
        by this error; None where it is about other sizes."""
        given = {symbol.name for spec in engine.inputs for size in spec.shape for symbol in free_symbols(size)}
        if not error.sizes or given & error.sizes.keys() or set(error.sizes.values()) != {1}:
            return None
        return self._at_one.get(True, partial(self._compiled_at_one, error))

    def _compiled_at_one(self, error: ShapeError) -> Engine | None:
        try:
            graph = import_onnx(self._source.get(), self._shapes, at_one=True)
            engine = compile_model(graph, None, None, self._target)
        except (UnsupportedOperationError, ImportModelError, ShapeError):
            return None
        logger.log(self._level, "an engine is compiled for sizes of 1 that a run finds")
        logger.debug("%s", error)
        self._level = logging.INFO
        return engine

    def engine(self, inputs: Mapping[str, Any], known: Sequence[TensorSpec], error: TilewrightError) -> _Sized:
        """The engine for exactly these sizes, compiled when they first come; raises `error` where there is none."""
        return self._needed(self._choices(inputs, known, error)[-1], error)

    def _needed(self, fixed: _Fixed, error: TilewrightError) -> _Sized:
        found = self._engine(fixed, error)
        if found is None:
            raise error
        return found

    def _choices(self, inputs: Mapping[str, Any], known: Sequence[TensorSpec], error: TilewrightError) -> list[_Fixed]:
        """Which sizes may be fixed, the fewest first; raises `error` for shapes that the model does not take."""
        known = [self._as_declared(spec) for spec in known if _is_tensor(spec)]
        shapes = {spec.name: getattr(inputs[spec.name], "shape", None) for spec in known}
        if not all(_fits(spec, shapes[spec.name]) for spec in known):
            raise error
        sizes = [
            (spec.name, axis, int(size))
            for spec in known
            for axis, (size, declared) in enumerate(zip(shapes[spec.name] or (), spec.shape, strict=True))
            if not isinstance(declared, int)
        ]
        if not sizes:
            raise error
        choices = [tuple(entry for entry in sizes if entry[2] <= most) for most in (0, 1)]
        return list(dict.fromkeys([*filter(None, choices), tuple(sizes)]))

    def _as_declared(self, spec: TensorSpec) -> TensorSpec:
        """An input with the sizes that the file or the caller fixes: an engine may fix others, which its operations
        imply for dimensions of one name, and which another call does not have."""
        if self._declared is None:
            self._declared = {entry.name: entry for entry in inputs_of(self._source.read())}
        declared = self._declared.get(spec.name)
        if declared is None or len(declared.shape) != len(spec.shape):  # the file does not say how many it has
            return spec
        given = parse_dynamic_shapes(self._shapes).get(spec.name, {})
        sizes = (given[axis] if isinstance(given.get(axis), int) else size for axis, size in enumerate(declared.shape))
        return replace(declared, shape=tuple(sizes))  # type: ignore[arg-type]

    def _engine(self, fixed: _Fixed, error: TilewrightError) -> _Sized | None:
        """The engine with these sizes; None for sizes that the model does not take."""
        return self._engines.get(fixed, partial(self._compiled, fixed, error))

    def _compiled(self, fixed: _Fixed, error: TilewrightError) -> _Sized | None:
        shapes = {name: dict(axes) for name, axes in parse_dynamic_shapes(self._shapes).items()}
        for name, axis, size in fixed:
            shapes.setdefault(name, {})[axis] = size
        model = self._source.get()
        try:
            engine: _Sized = compile_model(model, None, shapes, self._target)
        except UnsupportedOperationError as problem:
            found = self._otherwise(shapes, problem)
            if found is None:
                return None
            engine = found
        except (ImportModelError, ShapeError):
            return None
        logger.log(self._level, "an engine is compiled with %s", _text_of(fixed))
        logger.debug("%s", error)
        self._level = logging.INFO
        return engine

    def _otherwise(
        self, shapes: Mapping[str, Any], problem: UnsupportedOperationError
    ) -> EnginesOfBranches | SpecializedEngine | None:
        """What runs a model that is refused at these sizes: for an If that keeps the number of dimensions at others
        only, or an operation that needs the values of a list, whose length is now known."""
        whole = self._source.whole()
        branch = refused_branch(whole, problem)
        if branch is not None:
            return EnginesOfBranches(whole, branch, self._target, shapes)
        try:
            return specialized(_with_sizes(whole, shapes), self._target, shapes, problem)
        except (UnsupportedOperationError, ShapeError):
            return None


def _with_sizes(model: ModelProto, shapes: Mapping[str, Any]) -> ModelProto:
    """The model in which inputs have the dimensions that `shapes` gives, with the sizes that are numbers."""
    if not shapes:
        return model
    result = ModelProto()
    result.CopyFrom(model)
    for entry in result.graph.input:
        if entry.name not in shapes or not entry.type.HasField("tensor_type"):
            continue
        axes, shape = shapes[entry.name], entry.type.tensor_type.shape
        dims = shape.dim
        if not entry.type.tensor_type.HasField("shape"):
            shape.SetInParent()  # that of a number has no dimensions
            dims.extend(TensorShapeProto.Dimension() for _ in axes)
        for axis, size in axes.items():
            if isinstance(size, int):
                dims[axis].dim_value = size
    return result


def _text_of(fixed: _Fixed) -> str:
    """Fixed sizes for messages: x[0] = 1."""
    return ", ".join(f"{name}[{axis}] = {size}" for name, axis, size in fixed)


class EnginesOfCalls(_SeveralEngines):
    """Engines of a model of which there is none for all sizes: one for the sizes of each call.

    Where there is none for these either, running raises why there is none for all.
    """

    def __init__(
        self,
        source: Source,
        target: str,
        dynamic_shapes: Mapping[str, Any] | None,
        error: UnsupportedOperationError | ShapeError,
    ) -> None:
        read = source.read()
        self.inputs, self.outputs = _specs(read, dynamic_shapes)
        self._error = error
        self._engines = EnginesOfSizes(source, target, dynamic_shapes, expected=True)
        _tell(read.graph.name, "the sizes of each call", error)

    def _no_file(self) -> str:
        return "the model has an engine for the sizes of each call; build it with dynamic_shapes that fix them"

    def _for(self, inputs: Mapping[str, Any], threads: int | None) -> _Sized:
        return self._engines.engine(inputs, self.inputs, self._error)


class EnginesOfRanks(_SeveralEngines):
    """Engines of a model that does not say how many dimensions its inputs, or the items of its sequences, have: one for
    each number that comes."""

    def __init__(
        self,
        source: Source,
        target: str,
        dynamic_shapes: Mapping[str, Any] | None,
        quick_start: bool = False,
    ) -> None:
        self._source, self._target, self._quick_start = source, target, quick_start
        self._shapes = dict(dynamic_shapes or {})
        self._level = logging.WARNING  # of the next engine
        model = source.read()
        survey(model, source.folder)
        self.inputs, self.outputs = _specs(model)
        self._open = [
            entry.name
            for entry in _inputs(model)
            if (found := _tensor(entry)) is not None and not found.HasField("shape")
        ]
        self._engines: RecentlyUsed[tuple[int, ...], _Runner] = RecentlyUsed()

    def _no_file(self) -> str:
        return (
            f"the model does not say how many dimensions {', '.join(self._open)} has, and has an engine for each "
            "number; build it with dynamic_shapes, which gives them"
        )

    def _for(self, inputs: Mapping[str, Any], threads: int | None) -> _Runner:
        key = tuple(_rank(inputs[name]) for name in self._open)
        return self._engines.get(key, partial(self._compiled, dict(zip(self._open, key, strict=True))))

    def _compiled(self, ranks: Mapping[str, int]) -> _Runner:
        """What runs the model with these numbers of dimensions: for items of sequences, the model declares them."""
        logger.log(self._level, "an engine is compiled for %s of %s dimensions", ", ".join(ranks), list(ranks.values()))
        self._level = logging.INFO
        source, shapes = self._source, dict(self._shapes)
        tensor = {spec.name: _is_tensor(spec) for spec in self.inputs}
        shapes |= {
            name: {axis: symbol_name(f"{name}_{axis}") for axis in range(rank)}
            for name, rank in ranks.items()
            if tensor[name]
        }
        items = {name: rank for name, rank in ranks.items() if not tensor[name]}
        if items:
            source = Source(_with_items(source.whole(), items))
        if -1 in items.values():  # of which an operation may need one number
            engine = compile_model(source.get(), None, shapes, self._target, quick_start=self._quick_start)
            return _SizedEngine(engine, EnginesOfSizes(source, self._target, shapes))
        return _runner(source, self._target, shapes, self._quick_start)


class _SizedEngine:
    """An engine, and those for the sizes that it does not take."""

    def __init__(self, engine: Engine, sizes: EnginesOfSizes) -> None:
        self._engine, self._sizes = engine, sizes

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, threads: int | None = None
    ) -> dict[str, Any]:
        return self._sizes.run(self._engine, inputs, out, threads)

    def profile(self, inputs: Mapping[str, Any], runs: int = 10, threads: int | None = None) -> list[dict[str, Any]]:
        return self._engine.profile(inputs, runs, threads)


class EnginesOfBranches(_SeveralEngines):
    """Engines of a model with an If whose branches give other numbers of dimensions: one of the condition, and one of
    the model for each branch."""

    def __init__(
        self,
        model: ModelProto,
        node: NodeProto,
        target: str,
        dynamic_shapes: Mapping[str, Any] | None,
        quick_start: bool = False,
    ) -> None:
        self._model, self._node, self._target, self._quick_start = model, node, target, quick_start
        self._shapes = dict(dynamic_shapes or {})
        self.inputs, self.outputs = _specs(model, dynamic_shapes)
        self._condition = self._compiled(condition_of(model, node))
        self._branches: RecentlyUsed[bool, _Runner] = RecentlyUsed()

    def _no_file(self) -> str:
        return (
            f"the branches of {node_text(self._node)} give other numbers of dimensions, and have an engine each; let "
            "both give the same number"
        )

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, threads: int | None = None
    ) -> dict[str, Any]:
        """As `Engine.run`; a condition on random numbers and the branch draw the same ones."""
        with one_seed():
            return super().run(inputs, out, threads)

    def _for(self, inputs: Mapping[str, Any], threads: int | None) -> _Runner:
        (condition,) = self._condition.run(inputs, None, threads).values()
        is_true = bool(np.asarray(condition.cpu() if tensors.is_torch(condition) else condition).reshape(-1)[0])
        return self._branches.get(is_true, lambda: self._compiled(with_branch(self._model, self._node, is_true)))

    def _compiled(self, model: ModelProto) -> _Runner:
        return _runner(Source(model), self._target, self._shapes, self._quick_start)


_Sized = Engine | EnginesOfBranches | SpecializedEngine
_Runner = Engine | _SizedEngine | SpecializedEngine | EnginesOfCalls | EnginesOfRanks | EnginesOfBranches


def _runner(source: Source, target: str, shapes: Mapping[str, Any], quick_start: bool) -> _Runner:
    """What runs a model; raises as `instead`."""
    try:
        engine = compile_model(source.get(), None, shapes, target, quick_start=quick_start)
    except (UnsupportedOperationError, ShapeError) as error:
        return instead(source, target, shapes, error, quick_start)
    return _SizedEngine(engine, EnginesOfSizes(source, target, shapes))


def _rank(value: Any) -> int:
    """The number of dimensions of a tensor, or of the items of a sequence; -1 where they differ."""
    if not isinstance(value, (list, tuple)):
        return 1 if value is None else len(np.shape(value))
    ranks = {len(np.shape(item)) for item in value} or {1}  # any will do for no items
    return ranks.pop() if len(ranks) == 1 else -1


def _with_items(model: ModelProto, ranks: Mapping[str, int]) -> ModelProto:
    """The model with the number of dimensions of what sequences and optionals hold declared, where one is given."""
    result = ModelProto()
    result.CopyFrom(model)
    for entry in result.graph.input:
        if ranks.get(entry.name, -1) >= 0:
            found = _tensor(entry)
            assert found is not None
            found.shape.SetInParent()
            for _ in range(ranks[entry.name]):
                found.shape.dim.add()
    return result


def _tensor(entry: ValueInfoProto) -> TypeProto.Tensor | None:
    """The type of a tensor, or of the items of a sequence or optional of tensors."""
    found = entry.type
    while (kind := found.WhichOneof("value")) in ("sequence_type", "optional_type"):
        found = getattr(found, kind).elem_type
    return found.tensor_type if kind == "tensor_type" else None


def _is_tensor(spec: TensorSpec) -> bool:
    """Whether an input is no sequence and no optional."""
    return ANY_BY_NAME[spec.dtype].kind not in ("sequence", "optional")


def _fits(spec: TensorSpec, shape: Any) -> bool:
    """Whether a shape has the dimensions that the file fixes, and differs from them elsewhere only."""
    if shape is None or len(shape) != len(spec.shape):
        return False
    return all(not isinstance(size, int) or size == extent for size, extent in zip(spec.shape, shape, strict=True))


def bound(model: ModelProto, values: Mapping[str, np.ndarray]) -> ModelProto:
    """The model with some inputs as constants."""
    result = ModelProto()
    result.CopyFrom(model)
    remaining = [entry for entry in result.graph.input if entry.name not in values]
    del result.graph.input[:]
    result.graph.input.extend(remaining)
    result.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
    return result


def instead(
    source: Source,
    target: str,
    dynamic_shapes: Mapping[str, Any] | None,
    error: UnsupportedOperationError | ShapeError,
    quick_start: bool = False,
) -> SpecializedEngine | EnginesOfCalls | EnginesOfRanks | EnginesOfBranches:
    """What runs a model that was refused: an engine for each branch of an If, set of values of its small inputs, of
    numbers of dimensions of the items of sequences, or of sizes.

    Raises `error` where none can help: there is no rule for an operation, or all sizes are known.
    """
    survey(source.read(), source.folder)
    whole = _with_sizes(source.whole(), dynamic_shapes or {})
    branch = refused_branch(whole, error) if isinstance(error, UnsupportedOperationError) else None
    if branch is not None:
        return EnginesOfBranches(whole, branch, target, dynamic_shapes, quick_start)
    try:
        return specialized(whole, target, dynamic_shapes, error, quick_start)
    except (UnsupportedOperationError, ShapeError):
        if NO_RULE in str(error):
            raise
    if any(_holds_any(entry) for entry in _inputs(whole)):
        return EnginesOfRanks(source, target, dynamic_shapes, quick_start)
    if not has_free_sizes(_specs(whole, dynamic_shapes)[0]):
        raise error
    if isinstance(error, UnsupportedOperationError):
        specs = _specs(whole, dynamic_shapes)[0]
        if all(_as_refused(whole, specs, size, error) for size in _TRIED):
            raise error
    return EnginesOfCalls(source, target, dynamic_shapes, error)


def _as_refused(model: ModelProto, specs: Iterable[TensorSpec], size: int, error: UnsupportedOperationError) -> bool:
    """Whether a model is refused for the same reasons when its free dimensions have this size: no size helps it."""
    shapes = {
        spec.name: {axis: size for axis, extent in enumerate(spec.shape) if not isinstance(extent, int)}
        for spec in specs
        if _is_tensor(spec)
    }
    sized = _with_sizes(model, shapes)
    small = [entry for entry in _inputs(sized) if _is_small(entry)]
    for tried in (sized, bound(sized, _ones(map(_spec, small)))):
        try:
            import_onnx(tried)
        except UnsupportedOperationError as other:
            if not error.reasons or other.reasons != error.reasons:
                return False
        except TilewrightError:
            return False  # a size that the model does not take
        else:
            return False
    return True


def _holds_any(entry: ValueInfoProto) -> bool:
    """Whether items of a sequence or optional may have any number of dimensions."""
    found = _tensor(entry)
    return found is not None and not entry.type.HasField("tensor_type") and not found.HasField("shape")


def specialized(
    model: ModelProto,
    target: str,
    dynamic_shapes: Mapping[str, Any] | None,
    error: UnsupportedOperationError | ShapeError,
    quick_start: bool = False,
) -> SpecializedEngine:
    """What runs a model that was refused, where constants in the place of its small inputs would help; it keeps the
    model, which nobody may change any more.

    Raises `error` where the model is refused with them as well.
    """
    found = SpecializedEngine(model, target, dynamic_shapes, quick_start)
    ones = found.ones()
    try:
        if not ones:
            raise error
        import_onnx(bound(model, ones), found.shapes)
    except UnsupportedOperationError:
        raise error from None
    except ImportModelError:
        pass  # ones do not fit the model; the values of a run may
    _tell(model.graph.name, f"each set of values of {', '.join(ones)}", error)
    return found


def _tell(model: str, sets: str, error: TilewrightError) -> None:
    """Warn that there are several engines, and name the operations that need it; their reasons are for debugging, as
    the model is right."""
    reasons = error.reasons if isinstance(error, UnsupportedOperationError) else ()
    named = [f"{operation.rpartition('::')[2]} {name!r}" for operation, name, _ in reasons[:_NAMED]]
    needed = f" (needed by {', '.join(named)}{', …' if len(reasons) > _NAMED else ''})" if named else ""
    logger.warning("%s: an engine is compiled for %s%s", model or "the model", sets, needed)
    logger.debug("%s", error)


def _inputs(model: ModelProto) -> list[ValueInfoProto]:
    """What a call gives: inputs without a stored value."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [entry for entry in model.graph.input if entry.name not in stored]


def inputs_of(model: ModelProto) -> list[TensorSpec]:
    """The inputs of a model as it declares them."""
    return list(map(_spec, _inputs(model)))


def has_free_sizes(specs: Iterable[TensorSpec]) -> bool:
    """Whether a dimension is no number."""
    return not all(isinstance(size, int) for spec in specs for size in spec.shape)


def _specs(
    model: ModelProto, dynamic_shapes: Mapping[str, Any] | None = None
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Inputs and outputs of a model; inputs without a shape have the names that are given for their dimensions."""
    inputs = inputs_of(model)
    for place, entry in enumerate(_inputs(model)):
        given = (dynamic_shapes or {}).get(entry.name)
        if given and entry.type.HasField("tensor_type") and not entry.type.tensor_type.HasField("shape"):
            shape = tuple(symbol_name(f"{entry.name}_{axis}") for axis in sorted(given))
            inputs[place] = replace(inputs[place], shape=shape)  # type: ignore[arg-type]
    return inputs, list(map(_spec, _typed_outputs(model)))


def _typed_outputs(model: ModelProto) -> Sequence[ValueInfoProto]:
    """The outputs with the types that follow from the operations where the file gives none."""
    outputs = model.graph.output
    if all(list_type(entry.type) is not None for entry in outputs):
        return outputs
    with suppress(Exception):  # of models that only this importer takes
        return onnx.shape_inference.infer_shapes(model, data_prop=False).graph.output
    return outputs


def _spec(entry: ValueInfoProto) -> TensorSpec:
    """A value of the model as engines describe theirs."""
    tensor = entry.type.tensor_type
    shape = [dim.dim_value if dim.dim_value > 0 else dim.dim_param or "?" for dim in tensor.shape.dim]
    found = list_type(entry.type)
    if found is not None and found.kind in ("sequence", "optional"):
        shape = ["?"]  # its length
    return TensorSpec(entry.name, "float32" if found is None else found.name, tuple(shape))  # type: ignore[arg-type]


def _ones(specs: Iterable[TensorSpec]) -> dict[str, np.ndarray]:
    """Ones for inputs of fixed shapes."""
    found = {}
    for spec in specs:
        shape = [size for size in spec.shape if isinstance(size, int)]  # all are
        found[spec.name] = np.ones(shape, BY_NAME[spec.dtype].numpy)
    return found


def _is_small(entry: ValueInfoProto) -> bool:
    """Whether the value of an input can be part of a model: a number or a short list."""
    tensor = entry.type.tensor_type
    if (
        not tensor.HasField("shape")
        or tensor.elem_type not in ONNX_DTYPES
        or ONNX_DTYPES[tensor.elem_type] == string
        or len(tensor.shape.dim) > 1
    ):
        return False
    return all(0 < dim.dim_value <= MOST_VALUE_ELEMENTS for dim in tensor.shape.dim)
