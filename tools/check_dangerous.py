"""Find what runs data as code (pickle, eval, exec, torch.load, a shell, ...); every use is named here with its reason.

python tools/check_dangerous.py

Reads the syntax trees of all Python files, follows `import ... as`, `from ... import`, ``name = module``, `getattr`
with a text, and ``sys.modules[...]``, and fails on a use that `ALLOWED` does not name, and on an entry
of `ALLOWED` that nothing needs any more.  It finds oversights; who wants to hide a use from it can.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tilewright", "tests", "benchmarks", "demo", "examples", "tools")

# Reading their data runs what the data says, or their purpose is to run text.
MODULES = frozenset(
    "pickle _pickle marshal shelve dbm dill cloudpickle joblib jsonpickle code codeop zipimport numexpr".split()
)
NAMES = frozenset(
    "eval exec compile __import__ __builtins__ os.system os.popen os.startfile os.execv os.execve os.execvp os.execvpe "
    "os.execl os.execle os.execlp os.execlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe os.spawnl os.spawnle "
    "os.spawnlp os.spawnlpe os.posix_spawn os.posix_spawnp pty.spawn subprocess.getoutput subprocess.getstatusoutput "
    "asyncio.create_subprocess_shell tempfile.mktemp runpy.run_path runpy.run_module "
    "importlib.util.spec_from_file_location importlib.machinery.SourceFileLoader "
    "importlib.machinery.SourcelessFileLoader importlib.machinery.ExtensionFileLoader pkgutil.resolve_name "
    "pydoc.locate timeit.timeit timeit.repeat cProfile.run cProfile.runctx profile.run profile.runctx "
    "multiprocessing.reduction multiprocessing.connection "
    "yaml.load yaml.full_load yaml.unsafe_load yaml.load_all torch.load torch.serialization.load torch.jit.load "
    "torch.export.load torch.hub.load torch.hub.load_state_dict_from_url "
    "torch.utils.model_zoo.load_url torch._inductor.aoti_load_package torch._export.aot_load "
    "torch.package.PackageImporter torch.ops.load_library torch.classes.load_library "
    "torch.utils.cpp_extension.load torch.utils.cpp_extension.load_inline "
    "numpy.lib.format.read_array pandas.read_pickle pandas.eval sympy.sympify sympy.S sympy.parse_expr "
    "sympy.parsing.sympy_parser.parse_expr".split()
)
PICKLES = frozenset("pickle cPickle _pickle marshal dill cloudpickle".split())  # also as attributes of other modules
WITH_STAR = frozenset(name.rpartition(".")[0] for name in NAMES) - {""}  # modules that have such names
METHODS = frozenset(("load_module", "load_extension", "register_custom_ops_library"))  # of objects of any kind
CALLS = frozenset(("types.FunctionType", "types.CodeType"))  # as classes they are harmless
# Keywords that make a call dangerous unless they are the constant False.
KEYWORDS = frozenset(("shell", "allow_pickle", "trust_remote_code"))

_OWN = "runs source that the compiler has just written from a checked signature; no data from a file is in it"
_KERNEL = "compiles the caller's own Python function again with other source; the program runs it anyway"
_TABLE = "the modules come from a table in the source"
_SCRIPT = "its purpose is to run the Python program that the user names on the command line"
_BY_NAME = {"import_module of a name": "looks through our own modules"}
# path -> use -> why it is there; a path that ends with "/" stands for all files below it
ALLOWED: dict[str, dict[str, str]] = {
    "benchmarks/gpu/compilers.py": {"importlib.util.spec_from_file_location": "a file of this repository"},
    "benchmarks/kernelbench.py": {
        "importlib.util.spec_from_file_location": "runs the Python programs of a benchmark that the user names",
        "import_module of a name": _TABLE,
        "multiprocessing.connection": "the type of a pipe to its own processes",
    },
    "benchmarks/programs/tutorials.py": {
        "exec": "runs what Triton's tutorials define, from the folder that the user names",
        "compile": "keeps the names and lines of a tutorial's file",
    },
    "benchmarks/kernels_cuda.py": _BY_NAME,
    "tests/": {
        "exec": "runs the examples of our own documents, and kernels written in tests",
        "compile": "gives them the document's file name",
        "runpy.run_path": "runs our own examples as a user does",
        **_BY_NAME,
    },
    "tests/compile/test_nvidia_plain.py": {"importlib.util.spec_from_file_location": "a file of this repository"},
    "tests/host/test_engine_file.py": {"pickle": "sees that engines refuse to be pickled"},
    "tests/host/test_import_torch_archive.py": {
        "pickle": "writes pickles that must not run",
        "os.system": "what those would call",
    },
    "tests/host/test_frontend_shim_modules.py": {"pickle": "errors go between processes as Triton's do; own bytes"},
    "tests/host/test_shim_inductor.py": {"pickle": "compiled kernels go between processes as Triton's do; own bytes"},
    "tests/host/test_symbolic.py": {"pickle": "sizes go between processes; own bytes"},
    "tilewright/__init__.py": {"import_module of a name": _TABLE},
    "tilewright/cli/main.py": {"import_module of a name": _TABLE},
    "tilewright/cli/scripts.py": {
        "importlib.util.spec_from_file_location": _SCRIPT,
        "importlib.machinery.SourceFileLoader": _SCRIPT,
    },
    "tests/host/test_import_symbolic_places.py": {"eval": "programs that the test writes"},
    "tests/host/test_import_torch.py": {"sympy.sympify": "reads conditions that the test writes"},
    "tilewright/launch/binding.py": {"exec": _OWN, "compile": _OWN},
    "tilewright/frontend/builtins.py": {"getattr of builtins": "min, max, int, float and bool, by names in the source"},
    "tilewright/launch/cuda.py": {"exec": _OWN, "compile": _OWN},
    "tilewright/launch/jit.py": {"exec": _OWN, "compile": _OWN},
    "tilewright/launch/kernel_info.py": {
        "import_module of a name": "finds the kernels that the caller's own record of constants names"
    },
    "tilewright/launch/cpu.py": {"exec": _OWN, "compile": _OWN},
    "tilewright/launch/rewriting.py": {"compile": _KERNEL, "types.FunctionType": _KERNEL},
    "tilewright/importers/torch_archive.py": {
        "torch.load": "with weights_only=True, which makes tensors alone: weights in the format of earlier versions"
    },
    "tilewright/importers/torch_export.py": {
        "torch.export.load": "the caller said trust=True or --trust",
        "types.FunctionType": "the caller's own function under another name",
    },
    "tilewright/importers/torch_symbols.py": {"sympy.sympify": "strict=True, which takes objects and never text"},
    "tilewright/language/function.py": {"compile": _KERNEL, "types.FunctionType": _KERNEL},
    "tilewright/ops/__init__.py": {"import_module of a name": _TABLE},
    "tilewright/runtime/cuda/extern.py": {"import_module of a name": _TABLE},
    "tilewright/runtime/cuda/launch.py": {"exec": _OWN, "compile": _OWN},
    "tilewright/shim/__init__.py": {
        "exec": _SCRIPT,
        "compile": _SCRIPT,
        "runpy.run_path": _SCRIPT,
        "runpy.run_module": _SCRIPT,
        "import_module of a name": _TABLE,
    },
    "tilewright/shim/site/sitecustomize.py": {
        "importlib.util.spec_from_file_location": "runs the sitecustomize of the environment, which this one hides"
    },
    "tilewright/targets/families.py": {"import_module of a name": _TABLE},
    "tools/fuzz/targets/pt2_archives.py": {"pickle": "writes pickles that must not run"},
    "tools/conformance_plugin.py": {"importlib.util.spec_from_file_location": "test files of a checkout"},
    "tools/fuzz/target.py": _BY_NAME,
}


def uses(text: str) -> Iterator[tuple[int, str]]:
    """The line and name of every dangerous use in a Python source."""
    tree = ast.parse(text)
    known = _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, _top(item.name)) for item in node.names if _top(item.name) in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if _top(node.module or "") in MODULES:
                yield node.lineno, _top(str(node.module))
            else:
                named = (str(node.module), *(f"{node.module}.{item.name}" for item in node.names))
                yield from ((node.lineno, name) for name in named if name in NAMES)
                if node.module in WITH_STAR and any(item.name == "*" for item in node.names):
                    yield node.lineno, f"* of {node.module}"
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Load):
            yield from ((node.lineno, name) for name in _named(_dotted(node, known)))
            yield from ((node.lineno, name) for name in _dotted(node, known).split(".")[1:] if name in PICKLES)
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                yield node.lineno, node.attr
            if isinstance(node, ast.Subscript) and _top(_dotted(node, known)) in MODULES:  # of sys.modules
                yield node.lineno, _top(_dotted(node, known))
        if isinstance(node, ast.Call):
            yield from _call(node, known)


def _named(dotted: str) -> Iterator[str]:
    """The dangerous name that a chain is or ends with, as `self.torch.load` does."""
    parts = dotted.removeprefix("builtins.").split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    yield from (end for number, end in enumerate(ends) if end in NAMES and (number == 0 or "." in end))


def _call(node: ast.Call, known: dict[str, str]) -> Iterator[tuple[int, str]]:
    name = _dotted(node.func, known)
    yield from ((node.lineno, f"{key}=") for key, value in _keywords(node) if key in KEYWORDS and not _is(value, False))
    if name in CALLS:
        yield node.lineno, name
    if name == "numpy.load" and (len(node.args) > 2 or any(keyword.arg is None for keyword in node.keywords)):
        yield node.lineno, "allow_pickle="
    if name == "torch.load" and not any(key == "weights_only" and _is(value, True) for key, value in _keywords(node)):
        yield node.lineno, "torch.load without weights_only=True"
    if name == "getattr" and len(node.args) > 1:
        which, module = node.args[1], _dotted(node.args[0], known)
        if isinstance(which, ast.Constant):
            yield from ((node.lineno, found) for found in _named(f"{module}.{which.value}"))
        elif module in ("builtins", "os"):
            yield node.lineno, f"getattr of {module}"
    if name == "vars" and node.args and _dotted(node.args[0], known) == "builtins":
        yield node.lineno, "getattr of builtins"
    target = node.args[0] if node.args else None
    if name in ("importlib.import_module", "importlib.__import__"):
        if not isinstance(target, ast.Constant):
            yield node.lineno, "import_module of a name"
        elif _top(str(target.value)) in MODULES:
            yield node.lineno, _top(str(target.value))


def _keywords(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The keywords of a call, those in ``**{"name": value}`` too."""
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value
        elif isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), value


def _is(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _imported(tree: ast.AST) -> dict[str, str]:
    """What names of this file stand for: `np` -> numpy, `load` -> torch.load, of ``t = torch`` `t` -> torch."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known.update({item.asname: item.name for item in node.names if item.asname})
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            known.update({item.asname or item.name: f"{node.module}.{item.name}" for item in node.names})
    modules = {item.name for node in ast.walk(tree) if isinstance(node, ast.Import) for item in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            name = _dotted(node.value, known)
            of_module = isinstance(node.value, (ast.Name, ast.Attribute)) and _top(name) in map(_top, modules)
            if of_module or name == "importlib.import_module":
                known.update({target.id: name for target in node.targets if isinstance(target, ast.Name)})
    return known


def _dotted(node: ast.AST, known: dict[str, str]) -> str:
    """The full name of an attribute chain; "" when it does not begin with a name, or with ``sys.modules["name"]``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        if _dotted(node.value, known) == "sys.modules":
            return ".".join([str(node.slice.value), *reversed(parts)])
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([known.get(node.id, node.id), *reversed(parts)])


def _top(module: str) -> str:
    return module.partition(".")[0]


def main() -> int:
    problems = []
    needed = set()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for line, use in uses(path.read_text(encoding="utf-8")):
                entry = next((item for item in (name, f"{folder}/") if use in ALLOWED.get(item, {})), None)
                if entry is not None:
                    needed.add((entry, use))
                else:
                    problems.append(
                        f"{name}:{line}: {use}: avoid it, or name it in tools/check_dangerous.py with the reason"
                    )
    entries = {(name, use) for name, reasons in ALLOWED.items() for use in reasons}
    problems += [f"{name}: the entry for {use} is no longer needed" for name, use in sorted(entries - needed)]
    for problem in problems:
        print(problem)
    print(f"data as code: {len(problems)} problems, {len(entries)} uses with a reason")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
