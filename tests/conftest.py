"""Fixtures of all tests: golden texts, and random numbers from a seed that is printed.

def test_prints(golden):
    golden(print_function(function))          # compares with tests/golden/<file>/<test>.txt

pytest --update-golden                         writes the texts anew; look at the difference before committing
pytest --seed 1234                             draws the same random numbers again
pytest tests/device --kept-cache build/cache   compiles kernels into a folder that stays, for the next run
pytest --quick                                 leaves out what is marked slow, as `make test` does
"""

from __future__ import annotations

import gc
import logging
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before NumPy and PyTorch are imported: what tests compare with are small products, for which threads that wait for
# each other cost several times what they save, most of all where workers share the CPUs.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from tilewright.build import precompile  # noqa: E402
from tilewright.errors import MissingDependencyError  # noqa: E402
from tilewright.settings import settings  # noqa: E402
from tilewright.targets.nvidia.assemble import find_assembler  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing")
    parser.addoption("--kept-cache", type=Path, default=None, help="where device tests keep what they compile")
    parser.addoption("--seed", type=int, default=None, help="seed of the random numbers (default: a fresh one)")
    parser.addoption("--quick", action="store_true", help="leave out tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --quick, tests marked ``slow`` are left out; of those marked ``slow(but_every=n)`` every n-th case stays."""
    if not config.getoption("--quick"):
        return
    cases: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        mark = item.get_closest_marker("slow")
        name = item.nodeid.partition("[")[0]
        every = mark.kwargs.get("but_every", 0) if mark else 1
        (kept if every and cases[name] % every == 0 else left_out).append(item)
        cases[name] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """What is there now (PyTorch, thousands of tests) stays to the end: no collection of garbage looks at it again.

    Compilers make many objects that live for as long as a test; looking at them every 700 takes a tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(autouse=True, scope="session")
def _no_processes_that_compile() -> Iterator[None]:
    """Builds compile in the process of their test: workers share the CPUs already, and a fork of one costs more than it
    saves. Tests of processes that compile take `compile_processes`."""
    worth_it, precompile._FEWEST_JOBS = precompile._FEWEST_JOBS, sys.maxsize
    yield
    precompile._FEWEST_JOBS = worth_it


@pytest.fixture
def compile_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds of four kernels and more compile them in several processes, as they do for users."""
    monkeypatch.setattr(precompile, "_FEWEST_JOBS", 4)


@pytest.fixture(autouse=True, scope="session")
def _quick_exports() -> Iterator[None]:
    """What tests export themselves goes through PyTorch's list of operators once, as imports do. PyTorch's trace of
    every step, which it writes where its logger has a handler, is not kept: pytest gives one to each logger that does
    not propagate."""
    if "torch" not in sys.modules:  # by the tests that were collected
        yield
        return
    from tilewright.importers.torch_operators import operators_listed_once

    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    for handler in tuple(trace.handlers):
        trace.removeHandler(handler)
    with operators_listed_once():
        yield


def _settings_now() -> dict[str, Any]:
    variables = {name: value for name, value in os.environ.items() if name.startswith(("TILEWRIGHT_", "TRITON_"))}
    for name in ("TRITON_CACHE_DIR", "TRITON_PTXAS_PATH"):  # TorchInductor sets them for its own use
        variables.pop(name, None)
    return variables | vars(settings)


@pytest.fixture(autouse=True)
def _settings_stay() -> Iterator[None]:
    """A setting that a test leaves changed makes later tests of the same worker fail, far from the cause."""
    before = _settings_now()
    yield
    after = _settings_now()
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    assert not changed, f"the test leaves {', '.join(sorted(changed))} with another value"


@pytest.fixture
def assembler() -> None:
    """Skips where no cubin can be made."""
    try:
        find_assembler()
    except MissingDependencyError as error:
        pytest.skip(f"no assembler: {error}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a text with the one kept for this test; `name` tells several texts of one test apart."""
    test = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.node.name).strip("-")

    def check(text: str, name: str = "") -> None:
        path = GOLDEN / Path(request.node.path).stem / f"{test}{'.' + name if name else ''}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path} is missing; pytest --update-golden writes it. The text is:\n{text}"
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers; the seed is printed with a failing test."""
    seed = request.config.getoption("--seed")
    seed = secrets.randbits(32) if seed is None else seed
    print(f"random seed: {seed} (again with --seed {seed})")
    return np.random.default_rng(seed)
