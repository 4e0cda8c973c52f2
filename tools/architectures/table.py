"""The results of runs as one document without traces, and as the table of docs/results/architectures.md.

    python -m tools.architectures.table RESULTS.json … --note "what was run"

writes the runs of one PyTorch into benchmarks/results/architectures.json, and keeps those of others;
tools/readme_tables.py makes the tables of it.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "architectures.json"
WAYS = ("static", "dynamic", "sequence", "compile")
LIBRARIES = ("transformers", "timm", "torchvision", "diffusers", "torch")
# (in the reason, what it means); the first that matches is taken.
REASONS = (
    (r"torch\.compile fails as well", "PyTorch's own torch.compile fails"),
    (r"takes no range of", "PyTorch exports it for one size only"),
    (
        r"PyTorch cannot export.*data-dependent|is a number read out|the example's path|and the model needs",
        "its code depends on the numbers in tensors",
    ),
    (r"Constraints violated|specialized", "PyTorch exports it for one size only"),
    (r"random numbers", "draws random numbers"),
    (r"result's size depends|boolean mask", "a size that depends on data"),
    (r"read out of a tensor by", "a number read out of a tensor"),
    (r"a view by strides", "a view by strides of a part of a tensor"),
    (r"is a (sparse )?quantized|quantized tensors|quantized tensor \(", "quantized modules"),
    (r"PyTorch cannot export", "PyTorch does not export it"),
    (r"PyTorch cannot decompose", "PyTorch does not decompose what it exported"),
    (r"no import rule|complex numbers", "an operation without a rule"),
    (r"more than \d+ s", "takes too long"),
)


def meaning(outcome: dict[str, Any]) -> str:
    """Why an architecture is not right, in a few words."""
    text = " ".join(outcome.get("reason", "").split())
    found = next((words for pattern, words in REASONS if re.search(pattern, text)), text[:100])
    operations = sorted(set(re.findall(r"\d+\. ((?:aten|torchvision)\.\w+)", text)))
    return f"{found} ({', '.join(operations)})" if operations else found


def merged(paths: list[Path], note: str) -> dict[str, Any]:
    """The results of several runs with one PyTorch; the last one of an architecture and way counts."""
    found: dict[str, Any] = {}
    versions: set[str] = set()
    for path in paths:
        for name, ways in json.loads(path.read_text()).items():
            entry = found.setdefault(name, {"library": ways["library"]})
            for way in WAYS:
                if way in ways and ways[way]["outcome"] != "setup":
                    entry[way] = _plain(ways[way])
                    versions.add(ways[way]["torch"])
    if len(versions) != 1:
        raise SystemExit(f"results of one PyTorch at a time, not of {sorted(versions)}")
    tried = {name: entry for name, entry in sorted(found.items()) if any(way in entry for way in WAYS)}
    return {"torch": versions.pop(), "date": datetime.date.today().isoformat(), "note": note, "architectures": tried}


def _plain(outcome: dict[str, Any]) -> dict[str, Any]:
    plain = {key: outcome[key] for key in ("outcome", "kept", "noise", "seconds") if key in outcome}
    if outcome["outcome"] != "right":
        plain["why"] = meaning(outcome)
    return plain


def markdown(data: dict[str, Any]) -> str:
    """For each PyTorch, counts of each library and way, and everything that is not right."""
    return "\n".join(_of_one_version(run) for run in data["runs"])


def _of_one_version(run: dict[str, Any]) -> str:
    entries = run["architectures"]
    lines = [f"### PyTorch {run['torch']}", "",
             "| library | architectures | static | dynamic batch | dynamic sequence | torch.compile "
             "| of these nothing left to PyTorch |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for title in (*LIBRARIES, "all"):
        chosen = [entry for entry in entries.values() if title in (entry["library"], "all")]
        cells = [_share(chosen, way) for way in WAYS]
        whole = sum(entry.get("compile", {}).get("outcome") == "right" and not entry["compile"].get("kept")
                    for entry in chosen)  # fmt: skip
        lines.append(f"| {title} | {len(chosen)} | {' | '.join(cells)} | {whole} |")
    reasons: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for name, entry in entries.items():
        for way in WAYS:
            if way in entry and entry[way]["outcome"] != "right":
                reasons[entry[way]["outcome"], entry[way]["why"]].append(f"{name} ({way})")
    if reasons:
        lines += ["", "| outcome | why | architectures |", "| --- | --- | --- |"]
    for (outcome, why), names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {outcome} | {why.replace('|', '/')} | {', '.join(names)} |")
    return "\n".join(lines) + f"\n\n{run['note']} {run['date']}.\n"


def _share(chosen: list[dict[str, Any]], way: str) -> str:
    tried = [entry[way]["outcome"] for entry in chosen if way in entry]
    return f"{tried.count('right')} of {len(tried)}" if tried else "not run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    run = merged(options.results, options.note)
    others = [other for other in json.loads(RESULTS.read_text())["runs"] if other["torch"] != run["torch"]]
    RESULTS.write_text(json.dumps({"runs": [run, *others]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
