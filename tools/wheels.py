"""Build the wheel and try it in fresh environments, one for each Python: does it install, run, and how large is it.

python tools/wheels.py                                 every python3.11 to python3.14 on the PATH
python tools/wheels.py --python /opt/python3.14/bin/python3 --extras
python tools/wheels.py --torch                         with PyTorch as well
python tools/wheels.py --save                          also writes the table into docs/internals/runtime.md

Each environment gets the wheel with its base dependencies only, runs a smoke test (a kernel, an engine saved and loaded
in another process, the command line, the shim for Triton), and is measured: bytes of what was installed, and
CPU seconds of imports above an empty Python (the least of 9 processes), which other programs on the
machine disturb little.  `--torch` then adds PyTorch (gigabytes, for each Python), exports a module with a dynamic
batch, and runs it under `torch.compile`.  `--extras` asks pip whether every extra resolves.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT, BEGIN, END = ROOT / "docs" / "internals" / "runtime.md", "<!-- wheels -->", "<!-- end -->"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
ROUNDS = 9
IMPORTS = ("pass", "import tilewright", "import tilewright.language, tilewright.launch.jit")

SMOKE = '''
import subprocess, sys
import numpy as np
import tilewright
import tilewright.language as tl
from tilewright.dtypes import float32
from tilewright.build.builder import build
from tilewright.graph.build import GraphBuilder

@tilewright.jit
def double(x, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, 2 * tl.load(x + index, mask=index < n), mask=index < n)

x = np.arange(1000, dtype=np.float32)
out = np.zeros_like(x)
double[(8,)](x, out, 1000, BLOCK=128)
assert (out == 2 * x).all()

b = GraphBuilder("smoke")
rows = b.input("x", float32, (b.symbol("batch", 1, 8), 64))
b.output(b.op("softmax", [rows], axis=1), "y")
build(b.finish()).save("smoke.engine")
load = """import numpy as np, sys
from tilewright import Engine
y = Engine.load("smoke.engine")(np.ones((3, 64), np.float32))
assert abs(y - 1 / 64).max() < 1e-6 and "torch" not in sys.modules"""
subprocess.run([sys.executable, "-c", load], check=True)
for command in (["tilewright", "doctor"], ["tilewright.shim", "-c", "import triton.language"]):
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
subprocess.run([sys.executable, "-m", "tilewright", "inspect", "smoke.engine", "--html", "page.html"], check=True,
               stdout=subprocess.DEVNULL)
assert "<style>" in open("page.html", encoding="utf-8").read()
'''  # fmt: skip

TORCH_SMOKE = '''
import torch, tilewright

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)).eval()
program = torch.export.export(model, (torch.randn(3, 16),), dynamic_shapes=({0: torch.export.Dim("batch", max=8)},))
engine = tilewright.compile(program)
compiled = torch.compile(model, backend="tilewright", fullgraph=True)
with torch.no_grad():
    for rows in (1, 3, 8):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(engine(x), model(x))
        torch.testing.assert_close(compiled(x), model(x))
print("PyTorch", torch.__version__)
'''  # fmt: skip


@dataclass
class Tried:
    """What was seen in one environment."""

    python: str  # its version
    wheels: str  # versions of the dependencies with machine code
    bytes: int  # of everything that the installation added
    import_seconds: float  # of the package alone
    kernel_seconds: float  # with what defining a kernel needs, NumPy included


def build_wheel(folder: Path) -> Path:
    """The wheel, built apart from this environment; raises `SystemExit` when a file of the package is not in it."""
    pip(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    listed = subprocess.run(["git", "ls-files", "tilewright"], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("tilewright/")}
    expected = {name for name in listed.stdout.split() if (ROOT / name).is_file()}
    if inside != expected:
        raise SystemExit(f"missing in the wheel: {sorted(expected - inside)}; too many: {sorted(inside - expected)}")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(inside)} files")
    return wheel


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")


def pythons() -> list[Path]:
    """The interpreters on the PATH that start, oldest first."""
    found = []
    for version in VERSIONS:
        path = shutil.which(f"python{version}")
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            found.append(Path(path))
    return found


def attempt(python: Path, wheel: Path, folder: Path, torch: bool) -> Tried:
    """Install, run and measure; raises `subprocess.CalledProcessError` when a smoke test fails."""
    subprocess.run([str(python), "-m", "venv", str(folder / "environment")], check=True)
    own = interpreter(folder)
    before = installed_bytes(own)
    pip(own, "install", str(wheel))
    size = installed_bytes(own) - before
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TILEWRIGHT_", "PYTHON"))}
    environment["TILEWRIGHT_CACHE_DIRECTORY"] = str(folder / "cache")
    (folder / "smoke.py").write_text(SMOKE, encoding="utf-8")
    subprocess.run([str(own), "smoke.py"], cwd=folder, env=environment, check=True)
    seconds = [min(timed(own, code, environment) for _ in range(ROUNDS)) for code in IMPORTS]
    tell = (
        "import platform; from importlib.metadata import version as v; "
        "names = ('numpy', 'llvmlite', 'ml_dtypes'); "
        "print(platform.python_version(), ', '.join(f'{n} {v(n)}' for n in names), sep=';')"
    )
    version, wheels = subprocess.run([str(own), "-c", tell], capture_output=True, text=True, check=True).stdout.split(
        ";"
    )
    if torch:
        pip(own, "install", f"{wheel}[torch]")
        (folder / "torch_smoke.py").write_text(TORCH_SMOKE, encoding="utf-8")
        subprocess.run([str(own), "torch_smoke.py"], cwd=folder, env=environment, check=True)
        pip(own, "uninstall", "--yes", "torch")
    return Tried(version, wheels.strip(), size, seconds[1] - seconds[0], seconds[2] - seconds[0])


def interpreter(folder: Path) -> Path:
    """The Python of the environment in a folder."""
    return folder / "environment" / ("Scripts" if os.name == "nt" else "bin") / "python"


def installed_bytes(python: Path) -> int:
    """Bytes of site-packages without compiled bytecode, which pip may write or not."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), sep=';')"
    text = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout
    folders = {Path(part).resolve() for part in text.strip().split(";")}
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc")


def timed(python: Path, code: str, environment: dict[str, str]) -> float:
    """CPU seconds of a process that runs the code."""
    command = [str(python), "-c", f"{code}; import time; print(time.process_time())"]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def resolve_extras(python: Path, wheel: Path) -> None:
    """Ask pip what each extra would install; raises `SystemExit` where that fails."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in extras:
        pip(python, "install", "--dry-run", "--ignore-installed", f"{wheel}[{extra}]")
        print(f"tilewright[{extra}] resolves")


def table(tried: list[Tried]) -> str:
    """The figures in Markdown."""
    lines = [
        "| Python | installed with | base install, MB | `import tilewright`, ms | with `tilewright.language`, ms |"
    ]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for item in tried:
        figures = (item.bytes / 1e6, item.import_seconds * 1e3, item.kernel_seconds * 1e3)
        lines.append(f"| {item.python} | {item.wheels} | {' | '.join(f'{figure:.0f}' for figure in figures)} |")
    return "\n".join(lines)


def save(text: str) -> None:
    """Put the table into the docs, between its marks."""
    page = DOCUMENT.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END, 1)
    DOCUMENT.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", type=Path, help="interpreters; by default those on the PATH")
    parser.add_argument("--torch", action="store_true", help="also install PyTorch and compile a module of it")
    parser.add_argument("--extras", action="store_true", help="also ask pip whether every extra resolves")
    parser.add_argument("--save", action="store_true", help="write the table into docs/internals/runtime.md")
    options = parser.parse_args()
    chosen = options.python or pythons()
    with tempfile.TemporaryDirectory(prefix="tilewright-wheels-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        tried = []
        for number, python in enumerate(chosen):
            tried.append(attempt(python, wheel, folder / str(number), options.torch))
            print(f"Python {tried[-1].python}: works", flush=True)
        if options.extras:
            resolve_extras(interpreter(folder / str(len(chosen) - 1)), wheel)
    text = table(tried) + f"\n\n{platform.system()} {platform.machine()}, {time.strftime('%Y-%m-%d')}."
    print(text)
    if options.save:
        save(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
