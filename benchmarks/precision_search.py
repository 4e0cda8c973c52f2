"""`--precision auto` on trained models: what it loses on data that it did not see, and how much faster it is.

    python benchmarks/precision_search.py [--only digits] [--max-drop 0.005] [--threads 2] [--save]

On a busy machine set OPENBLAS_NUM_THREADS=1: threads of NumPy's BLAS wait for each other there, for minutes.

Models, data and scores: `benchmarks/models/bounded.py`.  The search has half of the data; engine and model in floats
then take turns on the other half: the drop of the score, and medians of CPU time.  One model is searched
with a bound that nothing keeps as well, and has to end with an error that says how near it came.  With --save the
cases that ran are in benchmarks/results/precision_search.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
# After `common`, which cleans the environment that NumPy's BLAS reads when it is loaded.
import numpy as np
import torch

from benchmarks.models.bounded import CASES, Bounded, Sample
from tilewright.build.builder import build
from tilewright.cli.precision import load_metric
from tilewright.engine.engine import Engine
from tilewright.errors import PrecisionBoundError
from tilewright.importers import import_model
from tilewright.quant.metrics import METRICS, of_score
from tilewright.quant.search import search_precision
from tilewright.settings import settings

OURS, FLOAT = "tilewright, auto", "tilewright, float32"
IMPOSSIBLE = ("digits, MLP",)  # models that are searched a second time, with a bound that nothing keeps


def drop_on(case: Bounded, floats: Engine, engine: Engine, samples: list[Sample]) -> float:
    """What the engine loses by the case's metric."""
    metric = load_metric(str(case.metric))
    drop = METRICS[metric] if isinstance(metric, str) else of_score(metric)
    outputs = [
        [{k: np.array(v) for k, v in each.run(inputs_of(s)).items()} for s in samples] for each in (floats, engine)
    ]
    return drop(outputs[0], outputs[1], samples)


def inputs_of(sample: Sample) -> Sample:
    """A sample without its label."""
    return {name: array for name, array in sample.items() if name != "label"}


def measure(name: str, case: Bounded, options: argparse.Namespace) -> dict[str, Any]:
    """Search, judge on data that was not seen, time, and search with an impossible bound."""
    began = time.perf_counter()
    metric = load_metric(str(case.metric))
    arguments: dict[str, Any] = {"metric": metric, "example_inputs": case.inputs}
    found = search_precision(case.model, case.samples, max_drop=options.max_drop, **arguments)
    seconds = time.perf_counter() - began
    floats = build(import_model(case.model, case.inputs))
    drop = drop_on(case, floats, found.engine, case.unseen)
    sample = inputs_of(case.unseen[0])
    runs = {OURS: lambda: found.engine.run(sample), FLOAT: lambda: floats.run(sample)}
    milliseconds = common.alternate(runs, options.rounds, options.seconds, time.process_time)
    shares = sorted(found.layers, key=lambda layer: -layer.candidates.get("float", (0.0, 0.0))[0])
    slowest = {layer.name: {"chosen": layer.chosen, "candidates": layer.candidates} for layer in shares[:4]}
    chosen = [layer.chosen for layer in found.layers]
    result: dict[str, Any] = {
        "name": name,
        "threads": options.threads,
        "milliseconds": milliseconds,
        "max_drop": options.max_drop,
        "drop_held_back": found.drop,
        "drop_unseen": drop,
        "search_seconds": seconds,
        "ratio": milliseconds[FLOAT]["median"] / milliseconds[OURS]["median"],
        "slowest_layers": slowest,
        "chosen": {kind: chosen.count(kind) for kind in sorted(set(chosen))},
    }
    if name in IMPOSSIBLE:
        result["impossible"] = refusal(case)
    return result


def refusal(case: Bounded) -> str:
    """What the search says of a bound that no narrow format keeps."""
    try:
        found = search_precision(case.model, case.samples, max_drop=0.0, metric="mse", example_inputs=case.inputs)
    except PrecisionBoundError as error:
        return str(error)
    sys.exit(f"a search within 0 % found {found.layers}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--max-drop", type=float, default=0.005)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="per engine and round")
    parser.add_argument("--save", action="store_true", help="write the results file")
    options = parser.parse_args()
    settings.threads = options.threads
    torch.set_num_threads(options.threads)  # of the training
    results: list[dict[str, Any]] = []
    for name, make in CASES.items():
        if options.only.lower() not in name.lower():
            continue
        results.append(found := measure(name, make(), options))
        print(
            f"{name}: drop {found['drop_unseen']:.3%} unseen, {found['drop_held_back']:.3%} held back; "
            f"{found['milliseconds'][OURS]['median']:.3f} ms, {found['milliseconds'][FLOAT]['median']:.3f} in "
            f"float32: {found['ratio']:.2f}; {found['chosen']}; searched for {found['search_seconds']:.0f} s",
            flush=True,
        )
        if options.save:
            common.save("precision_search", options.threads, results, searches=len(results), load=os.getloadavg()[0])


if __name__ == "__main__":
    main()
