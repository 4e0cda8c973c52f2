"""The import shim: Triton's module names resolve to tilewright, and programs written for Triton run."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tilewright
from tilewright import shim
from tilewright.settings import settings
from tilewright.shim.tables import ABSENT_NAMES, ALIASES, NAME_TABLES

SCRIPTS = Path(__file__).parent / "shim_scripts"


@pytest.fixture
def installed() -> Iterator[None]:
    shim.install()
    yield
    shim.uninstall()


@pytest.mark.parametrize("name", [*NAME_TABLES, *ALIASES])
def test_modules_import(installed: None, name: str) -> None:
    if name == "triton.tools.mxfp":
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    for attribute in NAME_TABLES.get(name, ()):
        assert getattr(module, attribute) is not None
    if name in ALIASES:
        assert module is importlib.import_module(ALIASES[name])
    value = sys.modules["triton"]
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    assert value is module or name == "triton.runtime.driver"  # which is the object, not the module, in Triton too


def test_names_are_tilewrights(installed: None) -> None:
    assert "triton" not in sys.modules and importlib.util.find_spec("triton") is not None
    names: dict[str, object] = {}
    exec(
        "import triton\nimport triton.language as tl\nfrom triton.runtime import driver\n"
        "from triton import jit as kernel\nimport triton.language.extra.cuda.libdevice\n"
        "from triton.language.extra import libdevice\nversion = tuple(int(n) for n in triton.__version__.split('.'))\n",
        names,
    )
    assert names["tl"] is tilewright.language and names["kernel"] is tilewright.jit
    assert names["driver"].active.get_current_target().backend in ("cpu", "cuda")  # type: ignore[attr-defined]
    assert names["libdevice"] is tilewright.language.extra.libdevice and names["version"] == (3, 9, 0)
    assert {"jit", "language", "runtime"} <= set(dir(names["triton"]))
    assert names["triton"].aggregate is tilewright.aggregate  # type: ignore[attr-defined]
    assert importlib.util.find_spec("triton.language") is not None
    assert tilewright.language.__spec__.name == "tilewright.language"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ABSENT_NAMES)
def test_what_cannot_be_says_what_to_use(installed: None, name: str) -> None:
    parent, _, last = name.rpartition(".")
    for statement in (f"import {name}", f"import {name}.deeper", f"from {name} import something"):
        with pytest.raises(ModuleNotFoundError, match="in tilewright: "):
            exec(statement)
    if parent in NAME_TABLES:
        with pytest.raises(ModuleNotFoundError, match="in tilewright: "):
            exec(f"from {parent} import {last}")
        assert not hasattr(importlib.import_module(parent), last)
    with pytest.raises(ModuleNotFoundError) as caught:  # packages look whether a module is there, and read the name
        importlib.util.find_spec(f"{name}.deeper")
    assert caught.value.name == name


def test_where_it_is_and_what_the_language_no_longer_has(installed: None) -> None:
    names: dict[str, ModuleType] = {}
    exec("import triton; import triton.language as tl", names)
    assert Path(str(names["triton"].__file__)).is_file()
    for name, advice in [("async_task", "warp_specialize"), ("nv_tma_desc_type", "TensorDescriptor")]:
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': .*{advice}"):
            getattr(names["tl"], name)


def test_what_nobody_knows(installed: None) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"'triton\.unheard_of' in tilewright$") as caught:
        importlib.import_module("triton.unheard_of")
    assert caught.value.name == "triton.unheard_of"
    with pytest.raises(ImportError, match="unheard_of"):
        exec("from triton import unheard_of")


def test_what_was_there_comes_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)  # an installed Triton, which PyTorch imports
    other, inner = ModuleType("triton"), ModuleType("triton.inner")
    monkeypatch.setitem(sys.modules, "triton", other)
    monkeypatch.setitem(sys.modules, "triton.inner", inner)
    shim.install()
    shim.install()
    assert caplog.messages == [
        "triton was imported before the shim was installed: modules that hold it keep it; "
        "install the shim first, or start with python -m tilewright.shim"
    ]
    assert importlib.import_module("triton") is not other and "triton.inner" not in sys.modules
    shim.uninstall()
    shim.uninstall()
    assert sys.modules["triton"] is other and sys.modules["triton.inner"] is inner
    assert "triton.language" not in sys.modules and not shim.installed()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tilewright.shim", *arguments],
        capture_output=True, text=True, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},  # the scripts ask for the CPU
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"), [(["vector_add.py", "5000"], "vector add agrees"), (["row_kernels.py"], "rows agree")]
)
def test_programs_run(arguments: list[str], said: str) -> None:
    pytest.importorskip("torch")
    done = run(str(SCRIPTS / arguments[0]), *arguments[1:])
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_modules_code_and_child_processes(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('the installed one must stay hidden')\n")
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'ran'\n")
    (tmp_path / "test_inner.py").write_text(
        "import os, subprocess, sys\n"
        "import triton\n"
        "def test_it():\n"
        "    code = 'import os, triton; print(triton.__version__, os.environ[\"OWN\"])'\n"
        "    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
        "    assert done.stdout == triton.__version__ + ' ran\\n', done\n"
    )
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    code = run("-c", "import sys, triton; print(sys.argv, triton.cdiv(7, 2))", "one")
    assert code.stdout == "['-c', 'one'] 4\n"
    site = run("--site").stdout.strip()
    assert site == shim.site_directory()
    bare = [sys.executable, "-S", "-c", "import sitecustomize, triton; print(triton.__version__)"]  # nothing installed
    environment = {**os.environ, "TILEWRIGHT_SHIM": "1", "PYTHONPATH": site}
    done = subprocess.run(bare, capture_output=True, text=True, cwd=tmp_path.parent, env=environment)
    assert done.stdout == f"{shim.TRITON_VERSION}\n", done


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "usage"), (["-m"], 2, "usage"), (["--help"], 0, "usage"), (["nowhere.py"], 2, "no file nowhere.py"),
        (["--fast"], 2, "unknown option --fast"),
    ],
)  # fmt: skip
def test_command_line_mistakes(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shim.main(arguments)
    assert ended.value.code == code and said in capsys.readouterr().err and not shim.installed()


def test_environment_variables_are_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = vars(settings).copy()
    for name in ("INTERPRET", "CACHE_DIRECTORY", "PRINT_AUTOTUNING", "DUMP_DIRECTORY"):
        monkeypatch.delenv(f"TILEWRIGHT_{name}", raising=False)
    for variable, value in {
        "TRITON_INTERPRET": "1",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "TRITON_ALWAYS_COMPILE": "true",
        "TRITON_PRINT_AUTOTUNING": "1",
        "TRITON_KERNEL_DUMP": "1",
        "TRITON_HOME": str(tmp_path),
        "TILEWRIGHT_ALWAYS_COMPILE": "0",  # our own name wins
    }.items():
        monkeypatch.setenv(variable, value)
    shim.install()
    try:
        assert settings.interpret is True and settings.print_autotuning
        assert settings.cache_directory == tmp_path / "cache"
        assert settings.dump_directory == tmp_path / ".triton" / "dump"
        assert settings.always_compile == before["always_compile"]
    finally:
        shim.uninstall()
    assert vars(settings) == before


def test_knobs(installed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tilewright.launch import hooks
    from tilewright.shim import knobs

    monkeypatch.delenv("TRITON_PRINT_AUTOTUNING", raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # so that the value written below does not outlive the test
    assert importlib.import_module("triton.knobs") is knobs
    calls: list[str] = []
    groups = (knobs.autotuning, knobs.runtime, knobs.cache, knobs.compilation, knobs.nvidia)
    with contextlib.ExitStack() as scopes:
        for group in groups:
            scopes.enter_context(group.scope())
        knobs.autotuning.print = True
        assert settings.print_autotuning and os.environ["TRITON_PRINT_AUTOTUNING"] == "1"
        knobs.cache.dir = str(tmp_path)
        assert settings.cache_directory == tmp_path and knobs.cache.dir == str(tmp_path)
        knobs.runtime.launch_enter_hook.add(calls.append)
        knobs.runtime.jit_cache_hook = calls.append
        knobs.compilation.listener = calls.append
        assert hooks.compilation.before == calls.append and hooks.compilation.listener == calls.append
        assert hooks.launch_enter.calls == [calls.append]
        knobs.nvidia.ptxas_options = "-v"  # kept, though nothing reads it
        assert knobs.nvidia.ptxas_options == "-v" and knobs.nvidia.knobs["ptxas_options"] == "-v"

    assert not settings.print_autotuning and "TRITON_PRINT_AUTOTUNING" not in os.environ
    assert not hooks.launch_enter.calls and hooks.compilation.before is None and hooks.compilation.listener is None
    assert settings.cache_directory != tmp_path and not knobs.nvidia.ptxas_options
    knobs.runtime.interpret = True
    assert settings.interpret is True
    knobs.runtime.interpret = knobs.env
    assert settings.interpret is False


def test_knobs_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.shim import knobs

    class Own(knobs.base_knobs):
        name = knobs.env_str("OWN_NAME", "nobody")
        on = knobs.env_bool("OWN_ON", True)
        maybe = knobs.env_opt_bool("OWN_MAYBE")
        count = knobs.env_int("OWN_COUNT", 3)

    own = Own()
    assert own.knobs == {"name": "nobody", "on": True, "maybe": None, "count": 3}
    with own.scope():
        own.on = False
        other = own.copy()
        own.maybe = True
        assert os.environ["OWN_ON"] == "0" and os.environ["OWN_MAYBE"] == "1"
        assert not other.on and own.knobs["maybe"] is True
        del own.maybe
        monkeypatch.setenv("OWN_MAYBE", "off")
        assert own.maybe is False
    assert own.on is True and "OWN_ON" not in os.environ and "OWN_MAYBE" not in os.environ
    monkeypatch.setenv("OWN_COUNT", "many")
    with pytest.raises(RuntimeError, match="OWN_COUNT='many'"):
        _ = own.count
