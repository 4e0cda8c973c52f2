"""Load an engine and embed the demo's sentences: python embed.py ENGINE TOKENIZER_FOLDER OUTPUT.npy

Only the runtime is imported here.  Prints the latencies as JSON; peers are timed where installed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sentences import SENTENCES, encode, pool

from tilewright.engine import Engine


def median_milliseconds(run: Callable[[], object], seconds: float = 1.0) -> float:
    """Median over repeated calls for about `seconds`, after a warm-up."""
    for _ in range(3):
        run()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def main() -> None:
    engine_path, folder, output = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    inputs = encode(folder, SENTENCES)
    began = time.perf_counter()
    engine = Engine.load(engine_path)
    load = (time.perf_counter() - began) * 1e3
    hidden = engine.run(inputs)["last_hidden_state"]
    np.save(output, pool(hidden, inputs["attention_mask"]))
    measured = {"engine load": load, "tilewright": median_milliseconds(lambda: engine.run(inputs))}
    print(json.dumps({**measured, **peers(folder, inputs)}))


def peers(folder: Path, inputs: dict[str, np.ndarray]) -> dict[str, float]:
    """The same checkpoint in PyTorch eager and ONNX Runtime, if this machine has them."""
    try:
        from peers import onnxruntime_run, torch_run
    except ImportError:
        return {}
    found = {}
    for name, make in (("PyTorch eager", torch_run), ("ONNX Runtime", onnxruntime_run)):
        run = make(folder, inputs)
        if run is not None:
            found[name] = median_milliseconds(run)
    return found


if __name__ == "__main__":
    main()
