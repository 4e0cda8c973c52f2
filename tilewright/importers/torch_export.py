"""PyTorch modules and exported programs -> Graph, through `torch.export` and the core ATen ops."""

from __future__ import annotations

import functools
import inspect
import logging
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type

from tilewright.dtypes import int64
from tilewright.errors import ImportModelError, ShapeError, UnsupportedOperationError, printable
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import ImportReport, Unsupported
from tilewright.importers.shapes import Axes, Dimension, parse_dynamic_shapes
from tilewright.importers.torch_arguments import (
    arguments_of,
    as_nested,
    both_forms,
    in_range,
    key_of,
    native_axes,
    of_sizes,
    own_names,
    without,
)
from tilewright.importers.torch_complex import REAL_TYPES, Complex, divided, is_complex, joined
from tilewright.importers.torch_control import import_control
from tilewright.importers.torch_data_conditions import (
    Assumption,
    assumed_of,
    check_none_lost,
    line_of_node,
    without_places,
)
from tilewright.importers.torch_exportable import exportable, whole_layers
from tilewright.importers.torch_fx import Walker, dtype_of, problem_of
from tilewright.importers.torch_gradients import needs_gradients
from tilewright.importers.torch_indexed_writes import select_scatter
from tilewright.importers.torch_lists import each_of_lists
from tilewright.importers.torch_log_messages import without_tracebacks
from tilewright.importers.torch_mutations import MODULE_STATE, written_by, written_copies
from tilewright.importers.torch_numbers import require_of_sizes
from tilewright.importers.torch_objects import as_plain_attributes, plain_calls, plain_fields, signature_of
from tilewright.importers.torch_operators import composites, operators_listed_once
from tilewright.importers.torch_ops import FOREIGN, RULES
from tilewright.importers.torch_program import (
    ExportedModel,
    export_fixed,
    export_other_path,
    export_program,
    narrowed_ranges,
)
from tilewright.importers.torch_quantized import QUANTIZED_PACKAGES
from tilewright.importers.torch_results import always, filled, results_of
from tilewright.importers.torch_size_branches import CodePath, Sizes, by_code_paths
from tilewright.importers.torch_size_conditions import deciding
from tilewright.importers.torch_size_one import Imported, Ones, refused_at_one
from tilewright.importers.torch_symbols import SymbolTable, may_be_one, squeezed, squeezed_symbols
from tilewright.symbolic import Size, lower_bound, plain_symbol, upper_bound

logger = logging.getLogger("tilewright")

Progress = Callable[[str, str, float], None]

# Composites that the graph has ops for: kept whole instead of being decomposed.
WHOLE_OPERATORS = tuple(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu layer_norm native_layer_norm rms_norm "
    "group_norm native_group_norm instance_norm linear matmul lstm gru rnn_tanh rnn_relu softmax log_softmax "
    "_softmax _log_softmax silu gelu mish hardswish hardsigmoid softplus adaptive_avg_pool1d adaptive_avg_pool2d "
    "avg_pool1d max_pool1d upsample_nearest1d upsample_nearest2d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d pixel_shuffle pixel_unshuffle col2im im2col one_hot index_copy stack triu tril unbind "
    "roll repeat addcmul addcdiv masked_fill logsumexp nan_to_num".split()
)


def decompositions() -> dict[Any, Any]:
    """PyTorch's table to core ATen without the composites that stay whole.

    PyTorch goes through all its operators for it, a tenth of what importing a small module takes: the table is kept
    until a library registers more of them.
    """
    return dict(_decompositions(composites()))


@functools.lru_cache(maxsize=1)
def _decompositions(names: tuple[str, ...]) -> dict[Any, Any]:
    table = dict(torch.export.default_decompositions().items())
    for name in WHOLE_OPERATORS:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return {**table, torch.ops.aten.select_scatter.default: select_scatter, **each_of_lists()}


class _FunctionModule(torch.nn.Module):
    """A function of tensors as a module, with the function's own signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        try:
            inspect.signature(function)
        except ValueError:  # PyTorch's own functions in C++, such as torch.sign, tell none
            self.forward = lambda *args, **kwargs: function(*args, **kwargs)
        else:
            self.forward = _named_forward(function) if isinstance(function, FunctionType) else function


def _named_forward(function: FunctionType) -> FunctionType:
    """The function as one that is called forward: PyTorch notes the lines of these alone."""
    code = function.__code__.replace(co_name="forward")
    found = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    found.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(found, function)  # type: ignore[return-value]


def import_function(
    function: Callable[..., Any],
    example_inputs: Any,
    dynamic_shapes: Any = None,
    name: str | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Export a function of PyTorch tensors and import it; the rest as for `import_module`."""
    name = name or getattr(function, "__name__", type(function).__name__).strip("<>")
    kind = type(name, (_FunctionModule,), {})  # messages name it
    return import_module(kind(function).eval(), example_inputs, dynamic_shapes, name, example_kwargs, progress)


def import_module(
    module: torch.nn.Module,
    example_inputs: Any,
    dynamic_shapes: Any = None,
    name: str | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Export a module in inference mode and import it.

    `example_inputs`: a tuple of positional arguments, a mapping of keyword arguments, or one tensor; `example_kwargs`:
    keyword arguments that follow positional ones.
    `dynamic_shapes`: the neutral form of `tilewright.importers.shapes` by input name, or what
    `torch.export.export` takes. `progress` is called with ("import", what is being done, 0.0).
    Raises `ImportModelError` when PyTorch cannot export the module, `UnsupportedOperationError`.
    """
    given, named = arguments_of(module, example_inputs, example_kwargs)
    name = name or type(module).__name__
    importing = functools.partial(_import_module, module, given, named, dynamic_shapes, name, _reporting(progress))
    with torch.no_grad():
        try:
            return importing()
        except ImportModelError as error:
            if not needs_gradients(error.__cause__):
                raise
    with torch.enable_grad():
        return importing()


def _import_module(
    module: torch.nn.Module,
    given: tuple[Any, ...],
    named: dict[str, Any],
    dynamic_shapes: Any,
    name: str,
    report: Callable[[str], None],
) -> Graph:
    """As `import_module`, with positional and named arguments."""
    args, kwargs = as_plain_attributes(given), as_plain_attributes(named)
    neutral, native = both_forms(module, args, kwargs, dynamic_shapes)
    args, kwargs = in_range(module, args, kwargs, neutral)
    with _inference_mode(module), exportable(module), plain_calls(module, given, named) as returned:
        whole = pytree.tree_structure((given, named)) == pytree.tree_structure((args, kwargs))
        model = ExportedModel(module, args, kwargs, native, whole)
        assumed: list[Assumption] = []  # of sizes
        report(f"torch.export of {name}")
        program = export_program(model, assumed)
        assumed += written_copies(program)
        names = own_names([leaf for leaf, _ in model.named_leaves()[1]])
        fields = plain_fields(signature_of(module, named).bind(*given, **named).arguments)

        tell = _log(name)

        def imported(program: ExportedProgram) -> Graph:
            ones = [each for each in assumed if each.only_one]
            report(f"operations of {name}")
            core, conditions = _decomposed(program, name, [each for each in assumed if not each.only_one])
            exports = _Exports(model, neutral, name, returned, names, tell, report)
            known = exports.last_returned
            joined = exports.by_code_paths(core, conditions, ones)
            graph = joined or _imported(core, conditions, neutral, name, known, names, tell)
            if ones and joined is None:  # among paths, each has the sizes for which its answers hold
                again = functools.partial(_at_one, model, graph)
                examples = _examples(model, program, graph)
                refused = refused_at_one(Imported(program, graph, assumed, names), examples, again)
                if refused:
                    graph = exports.apart(core, conditions, refused, known)
            graph.fixed.update((key, (-1, value)) for key, value in fields.items())  # none stands in the row itself
            return graph

        try:
            return imported(program)
        except UnsupportedOperationError as error:  # such as sizes that follow from numbers in tensors
            if not any(symbol_is_type(symbol, SymT.UNBACKED_INT) for symbol in program.range_constraints):
                raise
            return _with_numbers_fixed(error, lambda: imported(export_fixed(model)))


def _with_numbers_fixed(error: UnsupportedOperationError, importing: Callable[[], Graph]) -> Graph:
    """The graph of a program in which all numbers that are read are the example's, with why; else raises `error`."""
    try:
        graph = importing()
    except Exception:  # the first error says more
        raise error from None
    graph.remarks.append(f"numbers and sizes read from tensors are fixed to the example's: {_on_a_line(error)}")
    return graph


def _reporting(progress: Progress | None) -> Callable[[str], None]:
    """Reports what an import is at."""
    return (lambda item: progress("import", item, 0.0)) if progress is not None else (lambda item: None)


def _examples(model: ExportedModel, program: ExportedProgram, graph: Graph) -> dict[str, torch.Tensor]:
    """What the inputs of a graph are in the example, by name."""
    leaves = dict(model.named_leaves()[1])
    values = {
        **program.constants,
        **program.state_dict,
        **leaves,
        **({graph.seed: torch.tensor(0)} if graph.seed else {}),
    }
    return {value.name: values[value.name] for value in graph.inputs}


def _at_one(model: ExportedModel, general: Graph, ones: Ones, shapes: Mapping[str, tuple[int, ...]]) -> Imported:
    """The module exported and imported with some dimensions of its graph fixed to 1, the others as there; `shapes` are
    those of the examples then, of which the first elements are taken."""
    bound, leaves = model.named_leaves()
    small = {
        id(leaf): leaf[tuple(map(slice, shapes[key][: leaf.dim()]))].clone()
        for key, leaf in leaves
        if isinstance(leaf, torch.Tensor)
    }
    neutral = {value.name: _axes(value.shape, ones) for value in general.inputs}
    dims: dict[str, Any] = {}
    native = as_nested(bound, iter([native_axes(neutral.get(key, {}), dims) for key, _ in leaves]))
    assumed: list[Assumption] = []
    program = export_program(model.with_leaves(small, native), assumed)
    names = own_names([key for key, _ in leaves])
    conditions = [each for each in assumed if not each.only_one]
    graph = import_program(program, neutral, general.name, None, names, conditions, lambda remark: None)
    return Imported(program, graph, assumed, names)


@dataclass(frozen=True)
class _Exports:
    """Exports of a module for other sizes than the example's (`torch_size_branches.Exports`)."""

    model: ExportedModel
    axes: Mapping[str, Axes]
    name: str
    returned: Sequence[Any]  # by its calls, at each export
    names: Mapping[str, str]
    tell: Callable[[str], None]
    report: Callable[[str], None]

    @property
    def last_returned(self) -> Any:
        return self.returned[-1] if self.returned else None

    @property
    def may_be_zero(self) -> list[str]:
        """The dimensions whose ranges begin at 0, which an export of the code for a range does not cover."""
        entries = [entry for axes in self.axes.values() for entry in axes.values()]
        return sorted({entry.name for entry in entries if isinstance(entry, Dimension) and entry.low == 0})

    def _refuse_zero(self) -> None:
        """Raises `ShapeError` where dimensions may be 0: there is no program for that size."""
        names = " and ".join(map(repr, self.may_be_zero))
        if names:
            raise ShapeError(
                f"the range of {names} begins at 0, and there is no program for this size: PyTorch does not export "
                "the model for it, or there are more than 4 million combinations of sizes; "
                "begin the range at 1, and compile the model once more with the size 0 if it is to take nothing"
            )

    def may_differ(self, program: ExportedProgram, conditions: Sequence[Assumption]) -> bool:
        """Whether sizes may have other paths than the example's, those apart that the code asks whether they are 1."""
        return bool(self.axes and (conditions or self.may_be_zero or squeezed(program.graph)))

    def by_code_paths(
        self, program: ExportedProgram, conditions: Sequence[Assumption], ones: Sequence[Assumption]
    ) -> Graph | None:
        """The graph of all paths through the code, of which the decomposed program has the example's; None where there
        is one.  `ones` are the code's questions whether sizes are 1, `conditions` all else that it assumes of them.

        Raises `ShapeError` where a size of 0 has no path.
        """
        if not self.may_differ(program, conditions):
            return None
        graph = None
        try:
            graph = by_code_paths(self._first(program, [*conditions, *ones]), self.axes, self)
        finally:
            if graph is None:
                self._refuse_zero()
        for remark in graph.remarks if graph else ():
            self.tell(remark)
        return graph

    def apart(
        self, program: ExportedProgram, conditions: Sequence[Assumption], refused: Sequence[Assumption], returned: Any
    ) -> Graph:
        """The graph in which sizes of 1 have paths of their own, or are refused where there are none; `returned` is
        what the module returned for the example."""
        assumed = [*conditions, *refused]
        looked_for = self.may_differ(program, conditions)  # the paths
        joined = None if looked_for else self.by_code_paths(program, assumed, [])
        return joined or _imported(program, assumed, self.axes, self.name, returned, self.names, self.tell)

    def _first(self, program: ExportedProgram, assumed: Sequence[Assumption]) -> CodePath:
        """The example's path."""
        sizes: dict[str, int] = {}
        for key, leaf in self.model.named_leaves()[1]:
            for axis, entry in self.axes.get(key, {}).items():
                if isinstance(entry, Dimension):
                    sizes[entry.name] = leaf.shape[axis]
        return self._code_path(program, assumed, sizes, frozenset())

    def _code_path(
        self, program: ExportedProgram, assumed: Sequence[Assumption], sizes: Sizes, fixed: frozenset[str]
    ) -> CodePath:
        """A decomposed program as a path, with all that decides whether sizes take it."""
        conditions = [replace(each, only_one=False) for each in assumed]
        for size, node in squeezed(program.graph).items():
            if may_be_one(size, program.range_constraints):
                conditions.append(Assumption(sympy.Ne(size, 1), line_of_node(node)))
        return CodePath(program, conditions, self.names, sizes, self.last_returned, fixed)

    def export(self, sizes: Sizes, fixed: frozenset[str]) -> CodePath:
        """The module for an example of these sizes."""
        example = ", ".join(f"{name} {size}" for name, size in sizes.items())
        self.report(f"torch.export of the path of {example}")
        bound, leaves = self.model.named_leaves()
        given = {id(leaf): of_sizes(leaf, self.axes.get(key, {}), sizes) for key, leaf in leaves}
        dims: dict[str, Any] = {}
        native = [native_axes(without(self.axes.get(key, {}), fixed), dims) for key, _ in leaves]
        assumed: list[Assumption] = []
        program = export_other_path(self.model.with_leaves(given, as_nested(bound, iter(native))), assumed)
        program, conditions = _decomposed(program, self.name, assumed)
        return self._code_path(program, conditions, sizes, fixed)

    def graph(self, exported: CodePath, checked: bool) -> Graph:
        """Its graph; `checked`: every call checks what it takes for granted."""
        axes = {key: without(each, exported.fixed) for key, each in self.axes.items()}
        quiet: Callable[[str], None] = lambda remark: None  # noqa: E731
        return _imported(
            exported.program, exported.assumed, axes, self.name, exported.returned, self.names, quiet, checked
        )


def _axes(shape: Sequence[Size], ones: Ones) -> Axes:
    """The dynamic dimensions of an input but those that are 1."""
    found = {axis: plain_symbol(size) for axis, size in enumerate(shape)}
    return {
        axis: Dimension(symbol.name, symbol.low, symbol.high)
        for axis, symbol in found.items()
        if symbol is not None and symbol.name not in ones
    }


def _on_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:1000]


@contextmanager
def _inference_mode(module: torch.nn.Module) -> Iterator[None]:
    """eval() for the time of the export; reported, and undone afterwards."""
    training = [child for child in module.modules() if child.training]
    if not all(
        type(child).__module__.startswith(QUANTIZED_PACKAGES) for child in training
    ):  # `convert` leaves its own so
        logger.warning("the module is in training mode: importing it as if .eval() had been called")
    for child in training:
        child.training = False
    try:
        yield
    finally:
        for child in training:
            child.training = True


def load_program(path: str, trust: bool = False) -> ExportedProgram:
    """Read a .pt2 file, as data alone; with `trust` by PyTorch's own reader, which runs the programs (pickles) in it.

    Raises `ImportModelError` when it is missing or damaged, or cannot be read without `trust`.
    """
    if not _is_export(path):  # PyTorch would try its older formats, with a page of warnings
        raise ImportModelError(f"{path}: not a torch.export file; write one with torch.export.save(program, path)")
    if not trust:
        try:
            from tilewright.importers.torch_archive import read_program
        except ImportError as error:  # names inside PyTorch that change between versions
            raise ImportModelError(
                f"{path}: this version of PyTorch ({torch.__version__}) has no reader that takes the file as data "
                f"({error}); PyTorch's own runs the programs in it, which needs trust=True (build: --trust)"
            ) from error
        return read_program(path)
    try:
        return torch.export.load(path)
    except Exception as error:
        raise ImportModelError(
            f"{path}: not a loadable torch.export file ({error}); save it again with this version"
        ) from error


def _is_export(path: str) -> bool:
    """Whether a file is an archive with an exported program, of PyTorch's present or earlier format."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith((".json", "archive_format")) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, MemoryError):
        return False


def import_program(
    program: ExportedProgram,
    dynamic_shapes: Mapping[str, Any] | None = None,
    name: str = "exported",
    returned: Any = None,
    names: Mapping[str, str] | None = None,
    assumed: Sequence[Assumption] = (),
    tell: Callable[[str], None] | None = None,
) -> Graph:
    """Import an exported program: the signature gives inputs, constants, outputs and mutations.

    `dynamic_shapes` only names and narrows the dimensions that were exported as dynamic; `returned` is a result of the
    module itself, for the objects in it; `names` are the module's for inputs that have others in the program; `assumed`
    are conditions on sizes that every call checks; `tell` is called with remarks in place of a log.
    Raises `ImportModelError` when PyTorch cannot decompose the program, `UnsupportedOperationError`.
    """
    program, assumed = _decomposed(program, name, assumed)
    return _imported(program, assumed, dynamic_shapes, name, returned, names, tell)


def _decomposed(
    program: ExportedProgram, name: str, assumed: Sequence[Assumption]
) -> tuple[ExportedProgram, list[Assumption]]:
    """The program in core ATen, and all that it takes for granted of sizes. Raises `ImportModelError`."""
    quiet = without_tracebacks(), warnings.catch_warnings()
    given = program
    try:
        with torch.no_grad(), whole_layers(), without_places(), operators_listed_once(), quiet[0], quiet[1]:
            warnings.simplefilter("ignore", FutureWarning)  # what PyTorch tells itself of its own classes
            # A question must not leave a size the example's; a program for all sizes only asserts what it needs.
            with deciding(asserted=all(each.only_one for each in assumed), ones=False) as more:
                program = program.run_decompositions(decompositions())
    except Exception as error:  # PyTorch's own faults, such as those with programs read from files
        raise ImportModelError(
            f"PyTorch cannot decompose the exported program {name!r} ({type(error).__name__}: {error}); "
            "give tilewright.compile the module itself, with dynamic_shapes as in the export"
        ) from error
    check_none_lost(given, program)
    conditions = {assumption.condition for assumption in assumed}
    inputs = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    sizes = [size for each in inputs for size in getattr(each, "shape", ()) if isinstance(size, torch.SymInt)]
    known = {symbol for size in sizes for symbol in size.node.expr.free_symbols}  # a number that is given is fixed
    more = [each for each in more if each.condition.free_symbols <= known]
    return program, [*assumed, *(each for each in more if each.condition not in conditions)]


def _imported(
    program: ExportedProgram,
    assumed: Sequence[Assumption],
    dynamic_shapes: Mapping[str, Any] | None,
    name: str,
    returned: Any,
    names: Mapping[str, str] | None,
    tell: Callable[[str], None] | None,
    checked: bool = True,
) -> Graph:
    """The graph of a decomposed program. `checked`: every call checks what it takes for granted of sizes."""
    builder = GraphBuilder(name)
    ranges, others = narrowed_ranges(program.range_constraints, assumed)
    symbols = SymbolTable(builder, ranges, squeezed_symbols(program.graph), run_time=True)
    report = ImportReport(name)
    walker = Walker(builder, symbols, report, RULES | FOREIGN, import_control)
    dimensions = parse_dynamic_shapes(dynamic_shapes, derived=True)
    importer = _ProgramImporter(program, builder, symbols, walker, dimensions, names or {}, tell or _log(name))
    importer.inputs()
    if checked:
        importer.require(assumed, others)
        importer.tell_of_squeezes()
    symbols.assumptions = [each for each in assumed if not each.only_one]
    walker.run(program.graph.nodes)
    report.check()
    importer.outputs(returned)
    importer.assumptions()
    return builder.finish()


def _log(name: str) -> Callable[[str], None]:
    """Logs a remark on a graph the first time that it is made."""
    return functools.cache(lambda text: logger.warning("%s", printable(f"{name}: {text}")))


class _ProgramImporter:
    """The signature of one exported program."""

    def __init__(
        self,
        program: ExportedProgram,
        builder: GraphBuilder,
        symbols: SymbolTable,
        walker: Walker,
        dimensions: dict[str, Axes],
        names: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self.tell = tell
        self.program = program
        self.builder = builder
        self.symbols = symbols
        self.walker = walker
        self.dimensions = dimensions
        self.names = names
        self.mutated = written_by(program)
        self.input_values: dict[str, Value] = {}  # by placeholder name or buffer name

    def inputs(self) -> None:
        """Placeholders: user inputs (which name the symbols), constants, and what the model writes of its own state."""
        nodes = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        specs = self.program.graph_signature.input_specs
        given = [s for s in specs if s.kind == InputKind.USER_INPUT and isinstance(s.arg, TensorArgument)]
        for derived in (False, True):  # a size that is a symbol names it before one that follows from it
            for spec in given:
                self._name_symbols(nodes[spec.arg.name], derived)
        for spec in specs:
            name = self.names.get(spec.arg.name, spec.arg.name)
            if isinstance(spec.arg, ConstantArgument):
                if isinstance(spec.arg.value, (bool, int, float, str, type(None))):
                    self.builder.graph.fixed[name] = len(self.builder.graph.inputs), spec.arg.value
                if spec.arg.value is not None:
                    self._remark(f"input {name!r} is always {spec.arg.value!r}, as in the example")
                continue
            node = nodes[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument):
                self.walker.values[node] = self._input(node, name, node.name)
            elif not self._is_written(spec) and spec.target is not None and isinstance(spec.arg, TensorArgument):
                self._constant(node, spec)
        for spec in filter(self._is_written, specs):  # after the arguments, in whose order the engine is called
            name = str(spec.target)
            self.walker.values[nodes[spec.arg.name]] = self._input(nodes[spec.arg.name], name, name)
            self._remark(
                f"{MODULE_STATE[spec.kind]} {name!r} is written by the model: it is an input, updated in place"
            )

    def _is_written(self, spec: Any) -> bool:
        """Whether it is a buffer or parameter that the model writes."""
        return spec.kind in MODULE_STATE and spec.target in self.mutated

    def require(self, assumed: Sequence[Assumption], conditions: Sequence[Assumption]) -> None:
        """Tell what is taken for granted of sizes, and check at every call what is no range.

        Raises `ImportModelError` where a size is left with one value, or a condition cannot be checked.
        """
        names = {str(symbol): size for symbol, size in self.symbols.sizes.items()}

        def worded(assumption: Assumption) -> str:
            text = re.sub(r"\bs\d+\b", lambda found: str(names.get(found[0], found[0])), str(assumption.condition))
            return f"{assumption.place} (the example's path, taken while {text})"

        def worded_of_one(assumption: Assumption) -> str:
            sizes = sorted(str(names[str(symbol)]) for symbol in assumption.condition.free_symbols)
            are = f"{' and '.join(sizes)} {'are' if sizes[1:] else 'is'} 1"
            return (
                f"{assumption.place} (the code may give other results where {are}: build an engine of its own for the "
                f"size 1, and begin the range{'s' if sizes[1:] else ''} at 2 here)"
            )

        for assumption in assumed:
            one_each = {
                symbol: sympy.Symbol(str(names.get(str(symbol), symbol)))
                for symbol in assumption.condition.free_symbols
            }
            if assumption.condition.subs(one_each) == sympy.true:  # of sizes with one name
                continue
            if assumption.only_one:
                self._remark(f"a size of 1 is refused: {worded_of_one(assumption)}")
                continue
            for symbol in assumption.condition.free_symbols:
                size = self.symbols.sizes.get(str(symbol))
                bounds = (lower_bound(size), upper_bound(size)) if size is not None else (0, 1)
                if bounds[0] == bounds[1]:
                    raise ImportModelError(
                        f"the model takes no range of {size}: PyTorch takes it for {bounds[0]}, as in the example, at "
                        f"{worded(assumption)}; make the size fixed, or write the line without a condition on it"
                    )
            self._remark(f"the path through the code depends on sizes, which every call checks: {worded(assumption)}")
        for assumption in conditions:
            emit = Emitter(self.builder)
            emit.source = worded_of_one(assumption) if assumption.only_one else worded(assumption)
            try:
                require_of_sizes(emit, self.symbols, assumption.condition)
            except Unsupported as problem:
                raise ImportModelError(
                    f"the code depends on sizes in a way that no call can check: {worded(assumption)}: "
                    f"{problem.reason}; give a range for all of which it holds"
                ) from problem

    def tell_of_squeezes(self) -> None:
        for name in self.symbols.never_one:
            self._remark(f"{name} is never 1: the model squeezes a dimension of this size")

    def _constant(self, node: fx.Node, spec: Any) -> None:
        """A parameter, buffer or constant of an element type without a meaning here may stay unused only."""
        data = self._data(spec)
        try:
            dtype_of(REAL_TYPES.get(data.dtype, data.dtype))
        except Unsupported as reason:
            if not node.users:
                return
            kind = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}.get(spec.kind, "constant")
            raise ImportModelError(f"{kind} {spec.target!r}: {reason}; {reason.advice}") from reason
        self.walker.values[node] = self.walker.constant(data, str(spec.target))

    def _name_symbols(self, node: fx.Node, derived: bool) -> None:
        """Name the symbols that are sizes of an input, or those of which its sizes are linear functions."""
        name = self.names.get(node.name, node.name)
        axes = self.dimensions.get(name, {})
        for axis, extent in enumerate(node.meta["val"].shape):
            if isinstance(extent, torch.SymInt) and bool(extent.node.expr.is_Symbol) != derived:
                entry = axes.get(axis)
                dimension = entry if isinstance(entry, Dimension) else None
                self.symbols.name(extent.node.expr, dimension, f"{name}_{axis}")

    def _input(self, node: fx.Node, name: str, key: str) -> Any:
        fake = node.meta["val"]
        try:
            value = declare_input(self.builder, self.symbols, fake, name)
        except Unsupported as reason:
            raise ImportModelError(f"input {name!r}: {reason}; {reason.advice}") from reason
        if isinstance(value, Complex):
            self._remark(f"input {name!r} is complex: it is given as pairs, as torch.view_as_real gives them")
        self.input_values[key] = self.builder.graph.inputs[-1]
        return value

    def _data(self, spec: Any) -> torch.Tensor:
        if spec.kind == InputKind.PARAMETER or (spec.kind == InputKind.BUFFER and spec.persistent):
            return self.program.state_dict[spec.target]
        return self.program.constants[spec.target]

    def outputs(self, returned: Any) -> None:
        """Outputs by name, how the module's results are made of them, and mutations of inputs and buffers."""
        (output,) = [node for node in self.program.graph.nodes if node.op == "output"]
        results = list(output.args[0])
        users = []
        for spec, node in zip(self.program.graph_signature.output_specs, results, strict=True):
            if spec.kind == OutputKind.USER_OUTPUT:
                users.append(node)
            elif spec.target in self.mutated:
                self._mutate(node, self.input_values[str(spec.target)])
        names = output_names(self.program.call_spec.out_spec, len(users))
        self.builder.graph.results_of = results_of(self.program.call_spec.out_spec, users, returned, names)
        for name, node in zip(names, users, strict=True):
            if isinstance(node, fx.Node):
                declare_output(self.builder, self.walker.values[node], name)
            else:
                self._remark(always(name, node))

    def _mutate(self, node: fx.Node, buffer: Value) -> None:
        value = self.walker.values[node]
        if value.shape != buffer.shape:
            while given := [each for each in node.all_input_nodes if self._shape_of(each) == value.shape]:
                node = given[0]  # back to what made the shape
            reason = f"in place, it gives the input {buffer.name!r} another shape: {value.shape}, not {buffer.shape}"
            advice = "use an operation that gives a new tensor, such as transpose in place of transpose_"
            self.walker.report.add(problem_of(node, reason, advice))
            self.walker.report.check()
        self.builder.mutate(buffer, value)

    def _shape_of(self, node: fx.Node) -> Any:
        return getattr(self.walker.values.get(node), "shape", None)

    def assumptions(self) -> None:
        """Tell what is taken for granted of the numbers in tensors."""
        for text in assumed_of(self.program):
            self._remark(f"the path through the code depends on numbers in tensors, which every call checks: {text}")

    def _remark(self, text: str) -> None:
        self.tell(text)
        self.builder.graph.remarks.append(text)


def declare_input(builder: GraphBuilder, symbols: SymbolTable, fake: torch.Tensor, name: str) -> Any:
    """A graph input; a `Complex` has its parts as a last dimension of 2.  Raises `Unsupported`."""
    if not is_complex(fake):
        return builder.input(name, dtype_of(fake.dtype), symbols.shape(fake.shape))
    pairs = builder.input(name, dtype_of(REAL_TYPES[fake.dtype]), (*symbols.shape(fake.shape), 2))
    return divided(Emitter(builder), pairs)


def declare_output(builder: GraphBuilder, value: Any, name: str) -> None:
    """A graph output; sizes become int64 scalars, complex numbers pairs, and inputs and constants are copied."""
    if isinstance(value, Complex):
        value = joined(Emitter(builder), value)
    elif not isinstance(value, Value):
        value = Emitter(builder).value(value, int64)
    graph = builder.graph
    if value in graph.inputs or value in graph.constants or value in graph.outputs:
        value = builder.op("copy", [value])
    builder.output(value, name)


def output_names(structure: Any, count: int) -> list[str]:
    """Names from the keys of the returned structure: ``logits``, ``output`` or ``output_0``."""
    if structure is None:
        return [f"output_{index}" for index in range(count)]
    _, tree = filled(structure, structure.num_leaves)
    try:
        leaves, _ = pytree.tree_flatten_with_path(tree)
    except ValueError:  # a class that was registered without keys
        tree = dict(tree) if isinstance(tree, Mapping) else vars(tree) if hasattr(tree, "__dict__") else None
        leaves, _ = pytree.tree_flatten_with_path(tree)
    names = []
    for path, _index in leaves:
        keys = [key_of(key) for key in path]
        text = "_".join(keys)
        names.append("output" if not text else f"output_{text}" if text[0].isdigit() else text)
    return names if len(names) == count else [f"output_{index}" for index in range(count)]
