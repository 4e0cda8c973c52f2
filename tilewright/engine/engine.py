"""An engine: a plan, its machine code and its weights, ready to run. Loading one imports no compiler."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilewright.engine.arguments import Arguments
from tilewright.engine.bounded_json import read_json
from tilewright.engine.file import MOST_GRAPH_BYTES, REBUILD, Package, as_path, read_package, write_package
from tilewright.engine.plan_json import plan_from_json
from tilewright.engine.profiling import step_rows
from tilewright.engine.programs import programs_of
from tilewright.engine.signatures import PublicKey
from tilewright.engine.trust import Trust
from tilewright.errors import (
    EngineDamagedError,
    EngineError,
    EngineTargetError,
    InputError,
    TilewrightError,
    out_of_memory,
    printable,
)
from tilewright.forks import cached_property
from tilewright.once import once
from tilewright.precision import IEEE, TF32, split_name
from tilewright.runtime.plan import Plan, TensorSpec
from tilewright.runtime.seeds import next_seed
from tilewright.runtime.session import PlanSession, check_threads
from tilewright.runtime.shapes import check_mapping
from tilewright.symbolic import lift, simplify
from tilewright.targets.families import FAMILIES

if TYPE_CHECKING:
    from tilewright.engine.staged import StagedSession
    from tilewright.graph.core import Graph
    from tilewright.measure.record import Timing

Progress = Callable[[str, str, float], None]
MOST_MODEL_PARTS = 1000  # of a program

_ARRAYS = frozenset({np.ndarray})  # types of arguments that are inputs, whatever they hold


class Engine:
    """A compiled model.

        engine = Engine.load("model.engine")
        outputs = engine.run({"input_ids": ids, "attention_mask": mask})   # by name
        hidden = engine(ids, mask)                                          # in order

    Safe to call from several threads at once: every call has memory of its own.
    """

    def __init__(self, package: Package, origin: str = "the engine", target: str | None = None) -> None:
        """`origin` names the engine in errors; of several programs the first that fits this machine is taken, or the
        first for `target` ("cpu", "cuda", "cuda:sm_90a"). Machine code is linked at the first run, by `load` at once.
        """
        self._package = package
        self._origin = origin
        self._threads: int | None = None
        self._full_build: Callable[[float | None], bool] | None = None  # waits for it
        self.results_of: Callable[[Sequence[Any]], Any] | None = None  # what a call returns, of the outputs in order
        with self.reading():
            programs: Sequence[Mapping[str, Any]] = package.manifest["programs"]
            for program in programs:
                _check_program(program)
            self._misfits = [_misfit(program["target"]) for program in programs]
            self._program = self._choose_program(target)
            self._check_plan()  # before the plan is read, which takes longer
            self._signature = plan_from_json(self._program["plan"], False, "parts" in self._program)
            self._seed = self._seed_input()

    def _choose_program(self, target: str | None) -> Mapping[str, Any]:
        """The first program that runs here, or the first of all; of a family of targets where one is asked for."""
        pairs = list(zip(self._package.manifest["programs"], self._misfits, strict=True))
        if target is not None:
            wanted, precision = split_name(target)
            named = [(pair, target_name(pair[0]["target"])) for pair in pairs
                     if precision in (None, _precision(pair[0]["target"]))]  # fmt: skip
            pairs = [pair for pair, name in named if name == wanted]
            pairs = pairs or [pair for pair, name in named if wanted == name.partition(":")[0]]
            if not pairs:
                known = ", ".join(map(target_name, (p["target"] for p in self._package.manifest["programs"])))
                raise EngineTargetError(f"{self._origin} has no program for {target}: it has {known}. {REBUILD}")
        fitting = [program for program, reason in pairs if reason is None]
        return fitting[0] if fitting else pairs[0][0]

    def _check_plan(self) -> None:
        """Whether plan, weights and machine code belong together: all of them make the symbol."""
        program, offsets = self._program, self._package.weights.offsets
        for part in program.get("parts", [program]):
            programs = programs_of(part["target"])
            if programs is not None and part["symbol"] != programs.symbol(part, offsets):
                raise ValueError("the machine code belongs to another plan")
        if "parts" in program:
            symbols = [part["symbol"] for part in program["parts"]]
            if program["symbol"] != staged_symbol(program["plan"], symbols, self._package.graph):
                raise ValueError("the parts belong to another graph")

    def _seed_input(self) -> str | None:
        """The input that random numbers follow from, if there is one."""
        name = self._package.manifest.get("seed")
        if name is not None and (name, "int64", ()) not in [(s.name, s.dtype, s.shape) for s in self._signature.inputs]:
            raise ValueError("the seed of random numbers is no input that is one whole number")
        return name

    @contextmanager
    def reading(self) -> Iterator[None]:
        """``with engine.reading():`` what goes wrong while something of the file is looked at is damage to it.

        Raises `EngineDamagedError` in the place of errors such as `KeyError`.
        """
        try:
            yield
        except TilewrightError:
            raise
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            StopIteration,
            RecursionError,
        ) as error:
            raise EngineDamagedError(
                f"{self._origin} is damaged: the manifest is malformed ({type(error).__name__}: {str(error)[:300]}). "
                "Build it again."
            ) from error

    @once
    def _session(self) -> PlanSession | StagedSession:
        """The plan's machine code, linked; raises `EngineTargetError` and `EngineDamagedError`."""
        program = self._program
        if _misfit(program["target"]) is not None:
            raise EngineTargetError(
                f"{self._origin} does not run on this machine: {'; '.join(filter(None, self._misfits))}. {REBUILD}"
            )
        with self.reading():
            if "parts" not in program:
                return self._linked(program, self._signature)
            return self._staged(program)

    def _linked(self, program: Mapping[str, Any], signature: Plan) -> PlanSession:
        """The session of a program, or of a part of one; `signature` is its plan, maybe without steps."""
        programs = programs_of(program["target"])
        assert programs is not None, "`_misfit` names families that are not known"
        try:
            return programs.session(program, signature, self._package)
        except RuntimeError as error:
            raise EngineDamagedError(
                f"{self._origin} is damaged: its machine code does not link: {str(error)[:300]}. Build it again."
            ) from error

    def _staged(self, program: Mapping[str, Any]) -> StagedSession:
        """The session of a program of several parts."""
        from tilewright.engine.graph_json import graph_from_json, part_from_json
        from tilewright.engine.staged import StagedSession, check_graph

        package, parts = self._package, program["parts"]
        graph = graph_from_json(package.graph, package.weights, with_parts=False)
        plans = [plan_from_json(part["plan"], with_steps=False) for part in parts]
        check_graph(graph, self._signature, plans)
        sessions = [self._linked(part, plan) for part, plan in zip(parts, plans, strict=True)]
        return StagedSession(
            self._signature,
            graph,
            sessions,
            lambda number: part_from_json(package.graph, package.weights, number),
            [len(part["plan"]["steps"]) for part in parts],
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        target: str | None = None,
        *,
        expect_sha256: str | None = None,
        trusted_keys: PublicKey | Sequence[PublicKey] | None = None,
        mmap: bool = False,
        threads: int | None = None,
    ) -> Engine:
        """Load an engine file: read, verified, linked; `target` chooses among its programs ("cpu", "cuda").

        `threads` is how many CPU threads its runs use, by default `settings.threads`.

        An engine is a program: loading and running one runs the code of whoever made it.  With
        `expect_sha256` the file must have that SHA-256, with `trusted_keys` (files of public keys in PEM format, or
        their contents as bytes) one of them must have signed it (`tilewright sign`); nothing of the file is used
        before.  `tilewright.load` can build an engine again that does not load.

        The file is copied to memory.  ``mmap=True`` maps it instead, so that processes share the weights.  A mapped
        file may be replaced or deleted, but must not be written to: that would change results or end the process.

        Raises `EngineDamagedError`, `EngineVersionError`, `EngineTargetError` or `EngineUntrustedError` with the
        reason, `SigningKeyError` for a key that cannot be read, and `MissingDependencyError` without `cryptography`.
        """
        engine = cls._read(as_path(path, "an engine file"), target, Trust.of(expect_sha256, trusted_keys), mmap)
        engine._session  # noqa: B018 - link now, so that what does not fit is reported now
        engine.threads = threads
        return engine

    @classmethod
    def read(
        cls,
        path: str | Path,
        target: str | None = None,
        *,
        expect_sha256: str | None = None,
        trusted_keys: PublicKey | Sequence[PublicKey] | None = None,
        mmap: bool = False,
    ) -> Engine:
        """Read and verify an engine file without linking its machine code, so that it may be another machine's.

        Everything about the engine can be asked, and none of its code is run; running it links it then.  Raises as
        `load` does, but for `EngineTargetError`, which comes from `run`.
        """
        return cls._read(as_path(path, "an engine file"), target, Trust.of(expect_sha256, trusted_keys), mmap)

    @classmethod
    def _read(cls, path: Path, target: str | None, trust: Trust, mapped: bool) -> Engine:
        return cls(read_package(path, trust, mapped), f"the engine {path}", target)

    def save(self, path: str | Path) -> None:
        """Write the engine file: to a temporary name first, then renamed. Raises `EngineError`.

        After a quick start this waits for the full build, and raises what that raised.
        """
        self.wait_for_full_build()
        write_package(self._package, as_path(path, "an engine file"))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise EngineError(
            "an engine cannot be pickled or copied: it holds linked machine code. Save it with Engine.save(path), and "
            "load that file with tilewright.load(path) where it is needed; threads may share one engine."
        )

    def __repr__(self) -> str:
        takes, gives = (
            ", ".join(f"{spec.name}: {spec.dtype} [{', '.join(map(str, spec.shape))}]" for spec in specs)
            for specs in (self.inputs, self.outputs)
        )
        return printable(f"<Engine {self.name} for {self.target}: ({takes}) -> ({gives})>")

    # -- Quick starts ---------------------------------------------------------------------------

    def wait_for_full_build(self, seconds: float | None = None) -> bool:
        """Whether the machine code is that of the full build; waits for it, up to `seconds` where they are given.

        True at once for engines that were not compiled with `quick_start`. Raises what the full build raised.
        """
        return self._full_build is None or self._full_build(seconds)

    def becomes(self, wait: Callable[[float | None], bool]) -> None:
        """Tell that another engine of the same model will be taken in (`become`), and how to wait for that."""
        self._full_build = wait

    def become(self, other: Engine) -> None:
        """Take plan, machine code and weights of an engine of the same model, in one step for runs in other threads.

        Runs under way end with what they began with. Links the other engine first, and raises as `load` does.
        """
        other._session, other.plan  # noqa: B018 - made now, so that runs need not wait for it
        state = vars(other).copy()
        for own in ("_threads", "_full_build", "_origin", "results_of"):
            del state[own]
        vars(self).update(state)

    # -- What it takes and gives ----------------------------------------------------------------

    @property
    def threads(self) -> int | None:
        """CPU threads of a run, where the run itself says nothing; None for `settings.threads`."""
        return self._threads

    @threads.setter
    def threads(self, number: int | None) -> None:
        self._threads = None if number is None else check_threads(number)

    @property
    def inputs(self) -> list[TensorSpec]:
        """Names, dtypes and (symbolic) shapes of the inputs, in order."""
        return self._signature.inputs

    @property
    def outputs(self) -> list[TensorSpec]:
        """Names, dtypes and (symbolic) shapes of the outputs, in order."""
        return self._signature.outputs

    @property
    def seed(self) -> str | None:
        """The input that random numbers follow from, and that a call may leave out; None where none are drawn."""
        return self._seed

    def run(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, threads: int | None = None
    ) -> dict[str, Any]:
        """Run on inputs given by name; returns outputs by name.

        Inputs are NumPy arrays, PyTorch CPU tensors, or anything with DLPack; outputs are of the kind of
        the first input.  Text is an array of strings, a sequence a list of tensors, an optional one of these or
        None.  Where the model draws random numbers, the input `seed` may be left out: each run then has its own.
        `out` gives memory for outputs; `threads` is for this run, in place of `Engine.threads`.
        Raises `ShapeError` and `InputError`, which name the input, the dimension and what is allowed, and
        `OutOfMemoryError`.
        """
        session: PlanSession | StagedSession = self.__dict__.get("_session") or self._link(inputs)
        if threads is not None:
            check_threads(threads)
        if self._seed is not None:
            inputs = self._with_seed(inputs)
        try:
            return session.run(inputs, out, self._threads if threads is None else threads)
        except MemoryError as error:
            raise out_of_memory(f"a run of {self._origin}", error) from error

    def prepare(self, inputs: Mapping[str, Any], out: Mapping[str, Any]) -> Callable[[], None]:
        """A run on arrays in a GPU's memory that stay where they are: what this returns runs it, without another check.

        Outputs are written to `out`; the run is in order with the arrays' stream, and may not be done when it returns.
        Raises as `run`, and `InputError` for engines on CPUs or in several parts.
        """
        prepare = getattr(self.__dict__.get("_session") or self._link(inputs), "prepare", None)
        if prepare is None:
            raise InputError(f"{self._origin} does not run on a GPU as one part: call run")
        prepared: Callable[[], None] = prepare(inputs, out)
        return prepared

    def _with_seed(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs with a seed, drawn where they have none."""
        check_mapping(inputs, "inputs")
        if self._seed is None or self._seed in inputs:
            return inputs
        return {**inputs, self._seed: np.array(next_seed(), np.int64)}

    def _link(self, inputs: Mapping[str, Any]) -> PlanSession | StagedSession:
        """The session; one that is not there yet begins on the GPU of PyTorch's tensors, or else on the current one."""
        if not self.is_for_gpu:
            return self._session
        programs = programs_of(self._program["target"])
        assert programs is not None
        check_mapping(inputs, "inputs")
        with programs.on_device_of(inputs.values()):
            return self._session

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run on inputs in order or by name; returns the only output, or all of them as a tuple.

        An engine that `tilewright.compile` made of a PyTorch module returns what the module returns: dicts, lists,
        objects, numbers and None. One that was loaded from a file has no such structure.

        A dict, list or object stands for the inputs that its parts are: ``cache={"keys": k}`` for ``cache_keys=k``, or
        given in its place. None in the place of an argument stands for no input. Arguments that were no tensors in the
        example may be left out, or be given as they were there.
        """
        names = self._input_names
        if not named and len(arguments) == len(names) and _ARRAYS.issuperset(map(type, arguments)):
            return self._returned(self.run(dict(zip(names, arguments, strict=True))))
        if named and not named.keys() <= self._input_set:
            named = self._arguments.named(named)
        row: Sequence[Any] = arguments
        if all(hasattr(item, "shape") for item in arguments):
            inputs = dict(zip(names, arguments, strict=False))
        else:
            inputs, row = self._arguments.in_order(arguments)
        if len(row) > len(names):
            counts = f"{len(row)} inputs given, the engine takes {len(names)}: {', '.join(names)}"
            raise InputError(counts + self._arguments.always())
        for name in named:
            if name in inputs:
                raise InputError(f"input {name!r} is given twice")
        return self._returned(self.run({**inputs, **named} if named else inputs))

    def _returned(self, found: Mapping[str, Any]) -> Any:
        """What a call returns, of the outputs by name."""
        outputs = tuple(found.values())
        if self.results_of is not None:
            return self.results_of(outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    @cached_property
    def _arguments(self) -> Arguments:
        with self.reading():
            manifest = self._package.manifest
            return Arguments(self._input_names, dict(manifest.get("fixed", {})), dict(manifest.get("places", {})))

    @cached_property
    def _input_set(self) -> frozenset[str]:
        return frozenset(self._input_names)

    @cached_property
    def _input_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.inputs)

    # -- What is inside -------------------------------------------------------------------------

    @cached_property
    def plan(self) -> Plan:
        """The whole plan, with its steps and the evidence for each choice; of an engine in parts those of all."""
        with self.reading():
            plan = plan_from_json(self._program["plan"], in_parts="parts" in self._program)
            parts = [plan_from_json(part["plan"]) for part in self._program.get("parts", ())]
        for part in parts:
            plan.steps += part.steps
            plan.symbols = {**part.symbols, **plan.symbols}
            plan.arena_bytes = simplify(lift(plan.arena_bytes) + part.arena_bytes)
            plan.scratch_bytes = max(plan.scratch_bytes, part.scratch_bytes)
        return plan

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self._package.manifest.get("name", ""))

    @property
    def source(self) -> str:
        """The file or module that the engine was built from."""
        return str(self._package.manifest.get("source", ""))

    @property
    def producer(self) -> str:
        """The versions that wrote the engine."""
        return str(self._package.manifest.get("producer", ""))

    @property
    def target(self) -> str:
        """What the machine code is for."""
        return target_name(self._program["target"])

    @property
    def is_for_gpu(self) -> bool:
        """Whether it runs on a GPU, in its memory."""
        programs = programs_of(self._program["target"])
        return programs is not None and programs.on_device()

    @property
    def precision(self) -> str:
        """How products and convolutions of float32 multiply: ``ieee`` or ``tf32``."""
        return _precision(self._program["target"])

    @property
    def targets(self) -> tuple[str, ...]:
        """What the file has machine code for."""
        return tuple(target_name(program["target"]) for program in self._package.manifest["programs"])

    @property
    def features(self) -> tuple[str, ...]:
        """What the machine code needs: LLVM's names of CPU features, or a GPU's architecture."""
        return tuple(self._program["target"]["features"])

    @property
    def is_quick(self) -> bool:
        """Whether the machine code was made in less time and is slower (effort 0, for CPUs)."""
        return self._program["target"].get("quick") is True

    @property
    def search(self) -> Mapping[str, Any] | None:
        """The search for precisions that the engine comes from (`quant.search.PrecisionSearch.as_data`), if any."""
        with self.reading():
            found = self._package.manifest.get("search")
            return found if isinstance(found, Mapping) else None

    def record_search(self, data: Mapping[str, Any]) -> None:
        """Keep a search's table and points; `save` writes them."""
        manifest = {**self._package.manifest, "search": dict(data)}
        self._package = dataclasses.replace(self._package, manifest=manifest)

    def _texts(self, key: str) -> tuple[str, ...]:
        with self.reading():
            return tuple(map(str, self._package.manifest.get(key, ())))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the compiler had to tell: fallbacks, choices, warnings."""
        return self._texts("remarks")

    @property
    def fusion(self) -> tuple[str, ...]:
        """What the passes made of the graph, in words."""
        return self._texts("fusion")

    @property
    def advice(self) -> tuple[str, ...]:
        """What is slower than it could be, why, and what to change in the model or the build."""
        return self._texts("advice")

    @property
    def arena(self) -> tuple[tuple[Any, ...], ...]:
        """What lies in the arena: name, offset, bytes (as JSON sizes), first and last step."""
        with self.reading():
            return tuple(tuple(entry) for entry in self._program.get("arena", ()))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(entry.bytes for entry in self._package.weights.entries.values())

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The times by which kernels were chosen: what `tilewright tune` and builds of the model elsewhere use."""
        from tilewright.measure.record import timing_from_json

        with self.reading():
            return tuple(map(timing_from_json, self._program.get("timings", ())))

    def kernel_name(self, key: str) -> str:
        """The readable name of a binary in the plan."""
        programs = programs_of(self._program["target"])
        library = programs.library_name(key) if programs is not None else None
        return library or str(self._program["kernels"].get(key, {}).get("name", key))

    def kernel_facts(self, key: str) -> Mapping[str, Any]:
        """What the file keeps of a binary: constants, seconds of its compilation, launch and resources on GPUs."""
        facts: Mapping[str, Any] = self._program["kernels"].get(key, {})
        return facts

    def graph_data(self) -> dict[str, Any]:
        """The optimised graph as JSON values, without its constants' data."""
        with self.reading():
            data: dict[str, Any] = read_json(self._package.graph, MOST_GRAPH_BYTES)["graph"]
        return data

    def source_graph(self) -> Graph:
        """The optimised graph that the engine was built from, with its constants (imports the compiler)."""
        from tilewright.engine.graph_json import graph_from_json

        return graph_from_json(self._package.graph, self._package.weights)

    def profile(self, inputs: Mapping[str, Any], runs: int = 10, threads: int | None = None) -> list[dict[str, Any]]:
        """Median milliseconds of every step: dictionaries with name, kernel, milliseconds, bytes and flops.

        Raises `RuntimeError` where native code can't read a clock, and `InputError` as `run` does.
        """
        if runs < 1:
            raise InputError(f"runs is a whole number of at least 1, got {runs}")
        session, inputs = self._link(inputs), self._with_seed(inputs)
        threads = self._threads if threads is None else threads
        times = session.step_times(inputs, runs, threads, len(self.plan.steps))
        return step_rows(self.plan, times, session.symbols(inputs), self.kernel_name)


def staged_symbol(plan: Any, parts: Sequence[str], graph: bytes) -> str:
    """What a program of parts is known by: made of its signature, its parts' names, and what the host runs."""
    text = json.dumps([plan, parts, hashlib.sha256(graph).hexdigest()], sort_keys=True, separators=(",", ":"))
    return f"tilewright_parts_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _check_program(program: Mapping[str, Any]) -> None:
    """Raise `TypeError` or `KeyError` unless a program has the parts of one, each of its kind."""
    for part in program.get("parts", ()):
        if "parts" in part or part["target"]["name"] != program["target"]["name"]:
            raise TypeError("a part with parts of its own, or for another target")
        _check_program(part)
    if len(program.get("parts", ())) > MOST_MODEL_PARTS:
        raise TypeError(f"a program of more than {MOST_MODEL_PARTS} parts")
    target, kernels = program["target"], program["kernels"]
    texts = [target["name"], program["symbol"], *target["features"], *program["objects"], *kernels]
    texts += [target[key] for key in ("triple", "architecture") if key in target]
    lists = (target["features"], program["objects"], program.get("arena", []), program.get("timings", []))
    _check_kind(texts, str, "a text")
    _check_kind((target, program["plan"], kernels, *kernels.values()), dict, "an object")
    _check_kind(lists, list, "a list")


def _check_kind(entries: Iterable[Any], kind: type, name: str) -> None:
    for entry in entries:
        if not isinstance(entry, kind):
            raise TypeError(f"expected {name}, found {str(entry)[:80]}")


def _misfit(target: Mapping[str, Any]) -> str | None:
    """Why this machine cannot run a program for `target`; None when it can."""
    programs = programs_of(target)
    if programs is None:
        return f"it was built for {target['name']}, and this runtime knows {', '.join(FAMILIES)}"
    return programs.misfit(target)


def target_name(target: Mapping[str, Any]) -> str:
    """A program's target as `build` takes it: ``cpu``, ``cuda:sm_90a``."""
    architecture = target.get("architecture")
    return f"{target['name']}:{architecture}" if architecture else str(target["name"])


def _precision(target: Mapping[str, Any]) -> str:
    return TF32 if target.get("tf32") else IEEE
