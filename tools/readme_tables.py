"""Write the measured tables of the documentation from `benchmarks/results/*.json`.

A table stands between `<!-- results: NAME -->` and `<!-- end -->`, sentences about models on a GPU between
`<!-- facts: NAME -->` and `<!-- end -->`.  With --check nothing is written, and the exit code is 1 if a table differs
from its results.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import conformance_table
from architectures import table as architectures_table

ROOT = Path(__file__).resolve().parent.parent
RATES = {"gflops": "GFLOP/s", "gigabytes_a_second": "GB/s"}
BLOCK = re.compile(r"(<!-- (results|facts): (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ERROR_LIMIT = 1.5  # of a model's outputs, in errors of the fastest peer


def block(kind: str, name: str) -> str:
    """The Markdown table of one results file, or the facts about it."""
    data = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return model_facts(data) if kind == "facts" else table(data)


def table(data: dict[str, Any]) -> str:
    """The Markdown table of results."""
    if "tutorials" in data:
        return conformance_table.markdown(data)
    if "runs" in data and "architectures" in data["runs"][0]:
        return architectures_table.markdown(data)
    if "programs" in data:
        return programs_table(data)
    if "language_model" in data:
        return language_model_table(data)
    if "breadth" in data:
        return breadth_table(data)
    if "kernelbench" in data:
        return kernelbench_table(data)
    if "families" in data:
        return gpu_table(data)
    if "repeats" in data:
        return accuracy_table(data)
    if "models" in data:
        return model_table(data)
    if "calls" in data:
        return call_table(data)
    if "searches" in data:
        return search_table(data)
    if "fuzz" in data:
        return fuzz_table(data)
    if "geometric_means" in data:
        return peer_table(data)
    if any("cached_ms" in case for case in data["cases"]):
        return compile_table(data)
    if any("cpu_seconds" in case for case in data["cases"]):
        return build_table(data)
    return kernel_table(data) if any("best_peer" in case for case in data["cases"]) else runtime_table(data)


def breadth_table(data: dict[str, Any]) -> str:
    """A row a family: cases, the geometric mean of the ratios, the least, how many are under 0.9; then where it ran."""
    lines = [["family", "cases", "geometric mean", "least", "under 0.9"], ["---", "---:", "---:", "---:", "---:"]]
    for name, row in data["breadth"].items():
        numbers = [f"{row['geometric mean']:.2f}", f"{row['worst']:.2f}", str(int(row["under 0.9"]))]
        lines.append([name.replace("_", " "), str(int(row["cases"])), *numbers])
    place = data["environment"]
    versions = ", ".join(f"{name} {text}" for name, text in place["versions"].items() if text)
    rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{rows}\nSeed {data['seed']}; {place['device']}, {place['date']}; {versions}.\n"


def programs_table(data: dict[str, Any]) -> str:
    """A row a kernel of another package: our time, the best peer's, and the ratio; then their mean and where it ran."""
    key, unit = ("milliseconds", "ms") if data["programs"] == "cpu" else ("microseconds", "us")
    lines = [["kernel", f"tilewright {unit}", f"best peer {unit}", "peer", "peer / tilewright"]]
    lines.append(["---", "---:", "---:", "---", "---:"])
    ratios = [case["ratio"] for case in data["cases"] if "ratio" in case]
    for case in data["cases"]:
        if "ratio" not in case:
            lines.append([case["name"], "-", "-", case["failed"].split(":")[0], "-"])
            continue
        times = {name: value["median"] for name, value in case[key].items()}
        peer = case["best_peer"]
        row = [f"{times['tilewright']:.3g}", f"{times[peer]:.3g}", "Triton" if peer == "triton" else peer]
        lines.append([case["name"], *row, f"{case['ratio']:.2f}"])
    lines.append(["geometric mean", "", "", "", f"**{statistics.geometric_mean(ratios):.2f}**"])
    rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    place = data["environment"]
    if data["programs"] == "cpu":
        clock = f"CPU time, load {data['load']:.0f}" if data["cpu_time"] else "wall clock"
        machine = f"{place['processor']}, threads: {place['threads']}, {clock}"
    else:
        machine = f"{place['device']}, {place['driver']}, {place['assembler']}"
    return f"{rows}\n{machine}, {place['date']}; {_versions(place)}.\n"


def kernelbench_table(data: dict[str, Any]) -> str:
    """A row a level: problems, how many are whole graphs and right, the geometric means against the peers, how many are
    not slower; then those under 0.9 and where it ran."""
    lines = [["level", "problems", "whole graphs", "right", "torch.compile", "best peer", "not slower", "under 0.9"]]
    lines.append(["---", *["---:"] * 7])
    for name, row in data["kernelbench"].items():
        counts = [str(int(row[field])) for field in ("problems", "whole", "right")]
        means = [f"{row[field]:.2f}" for field in ("torch.compile", "best peer")]
        lines.append([name.split()[-1], *counts, *means, str(int(row["not slower"])), str(int(row["under 0.9"]))])
    slow = sorted((case["ratio"], case["key"]) for case in data["cases"] if case.get("ratio", 1) < 0.9)
    rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    text = "Under 0.9: " + ", ".join(f"{key} {ratio:.2f}" for ratio, key in slow) if slow else "None is under 0.9"
    dates = sorted({case["date"] for case in data["cases"]})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    place = f"{data['dtype']}; {data['environment']['device']}, {when}; {_versions(data['environment'])}"
    return f"{rows}\n{text}.\n\n{place}.\n"


def language_model_table(data: dict[str, Any]) -> str:
    """A row a step of a language model on a GPU, with the ratios to its peers; then a row a case of whole requests."""
    steps = [case for case in data["cases"] if "runtime" in case]
    times = {(case["name"], case["runtime"]): case["milliseconds"] for case in steps}
    peers = [name for name in dict.fromkeys(case["runtime"] for case in steps) if name != "tilewright"]
    columns = [column for peer in peers for column in (f"{peer} ms", f"{peer} / tilewright")]
    lines = [["step", "tilewright ms", "of the bound", "waits for the host", *columns]]
    lines.append(["---", *["---:"] * (3 + len(columns))])
    for case in steps:
        if case["runtime"] == "tilewright":
            row = [case["name"], f"{case['milliseconds']:.2f}", f"{case['share']:.2f}", f"{max(case['host'], 0):.1%}"]
            for peer in peers:
                took = times.get((case["name"], peer))
                row += ["-", "-"] if took is None else [f"{took:.2f}", f"{took / case['milliseconds']:.2f}"]
            lines.append(row)
    steps_text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    lines = [["requests", "tokens a second", "continuous / this", "of the bound"], ["---", *["---:"] * 3]]
    for case in data["cases"]:
        if "runtime" not in case:
            numbers = [f"{case[key]:.2f}" if key in case else "" for key in ("ratio", "share")]
            lines.append([case["name"], f"{case['tokens_per_second']:,.0f}", *numbers])
    facts, place = data["language_model"], data["environment"]
    requests_text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    where = f"{facts['layers']} layers; {facts['read']} TB/s, cuBLAS {facts['cublas']} TFLOP/s"
    where += f"; {facts['gpu']}, {place['date']}"
    where += f"; transformers {facts['transformers']}" if facts["transformers"] else ""
    return f"{steps_text}\n\n{requests_text}\n\n{where}, {_versions(place)}.\n"


def search_table(data: dict[str, Any]) -> str:
    """A row a model: what it loses on data that was not seen, its time beside float32, and how many layers are what."""
    lines = [["", "lost, of data not seen", "at most", "ms", "float32 ms", "float32 / auto", "layers"]]
    lines.append(["---", "---:", "---:", "---:", "---:", "---:", "---"])
    for case in data["cases"]:
        times = {name: value["median"] for name, value in case["milliseconds"].items()}
        chosen = ", ".join(f"{count} {kind}" for kind, count in case["chosen"].items())
        row = [
            case["name"],
            f"{case['drop_unseen']:.2%}",
            f"{case['max_drop']:.2%}",
            f"{times['tilewright, auto']:.2f}",
        ]
        lines.append([*row, f"{times['tilewright, float32']:.2f}", f"{case['ratio']:.2f}", chosen])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    refused = "".join(
        f'{case["name"]}, 0 % of mse: "{case["impossible"]}"\n\n' for case in data["cases"] if "impossible" in case
    )
    environment = data["environment"]
    place = f"{environment['processor']}, {environment['threads']} threads, {environment['date']}"
    return f"{text}\n\n{refused}CPU time; {place}, load {data['load']:.0f}; {_versions(environment)}.\n"


def fuzz_table(data: dict[str, Any]) -> str:
    """A row a target: cases, how many gave an answer, were refused with one of our errors, or failed."""
    lines = [["target", "cases", "answered", "refused", "failed"], ["---", "---:", "---:", "---:", "---:"]]
    sums = [0, 0, 0, 0]
    for name, row in data["fuzz"].items():
        refused = sum(count for label, count in row["labels"].items() if label.startswith("refused"))
        counts = [row["cases"], row["cases"] - refused - row["failed"], refused, row["failed"]]
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
        lines.append([f"`{name}`", *(f"{count:,}" for count in counts)])
    lines.append(["all", *(f"{count:,}" for count in sums)])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{data['date']}.\n"


def gpu_table(data: dict[str, Any]) -> str:
    """A row a case, with the best of its peers and the ratio to it; under a family's cases their geometric mean.

    Families that have no peer come last, with their times alone.
    """
    lines = [["", "", "tilewright us", "best peer us", "peer", "peer / tilewright", "rate"]]
    lines.append(["---", "---", "---:", "---:", "---", "---:", "---:"])
    for family, means in data["families"].items():
        for case in data["cases"]:
            if case["family"] != family or "ratio" not in case:
                continue
            times = {name: value["median"] for name, value in case["microseconds"].items()}
            peer, protocol = case["best_peer"], case["protocol"]
            row = [family, f"{case['name']}, {protocol}", f"{times['tilewright']:.1f}", f"{times[peer]:.1f}", peer]
            lines.append([*row, f"{case['ratio']:.2f}", _rate(case)])
        lines.append([family, "geometric mean", "", "", "", f"**{means['geometric_mean']:.2f}**", ""])
    for case in data["cases"]:
        if case["family"] not in data["families"] and "microseconds" in case:
            time = case["microseconds"]["tilewright"]["median"]
            row = [case["family"], f"{case['name']}, {case['protocol']}", f"{time:.1f}", "-", "none", "-"]
            lines.append([*row, _rate(case)])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{_gpu_environments(data['environments'].values())}"


def accuracy_table(data: dict[str, Any]) -> str:
    """A row a family: the case whose error is largest beside the most accurate peer's, and whether results repeat."""
    lines = [["", "cases", "error, largest beside a peer's", "peer's", "peer", "error / peer's", "bits repeat"]]
    lines.append(["---", "---:", "---:", "---:", "---", "---:", "---"])
    for family in dict.fromkeys(case["family"] for case in data["cases"]):
        cases = [case for case in data["cases"] if case["family"] == family]
        ran = [case for case in cases if "failed" not in case]
        if not ran:
            lines.append([family, "-", *[""] * 4, cases[0]["failed"].split(":")[0]])
            continue
        worst = max(ran, key=lambda case: case.get("ratio", case["error"] or 0.0))
        row = [family, str(len(ran)), f"{worst['error']:.2e}"]
        row += [f"{worst['peer_error']:.2e}", worst["peer"], f"{worst['ratio']:.2f}"] if "ratio" in worst else [""] * 3
        same = sum(case["identical"] for case in ran)
        lines.append([*row, "yes" if same == len(cases) else f"{same} of {len(cases)}"])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    environment = data["environment"]
    place = f"{data['repeats']} runs a case; {environment['device']}, {environment['date']}"
    return f"{text}\n\n{place}; {_versions(environment)}.\n"


def model_table(data: dict[str, Any]) -> str:
    """A row a model, with the best of its peers, the ratio to it, and what building and loading took."""
    lines = [["", "tilewright ms", "best peer ms", "peer", "peer / tilewright", "floor", "error / peer's", "build s"]]
    lines.append(["---", "---:", "---:", "---", "---:", "---:", "---:", "---:"])
    for case in data["cases"]:
        if "ratio" not in case:
            ours = case.get("milliseconds", {}).get("tilewright")
            reason = case.get("failed", "no peer ran").split(":")[0]
            lines.append([case["name"], f"{ours['median']:.3f}" if ours else "-", "-", reason, "-", "", "", ""])
            continue
        times = {name: value["median"] for name, value in case["milliseconds"].items()}
        peer, floor = case["best_peer"], case.get("floor")
        ratio = times[peer] / times["tilewright"]
        row = [case["name"], f"{times['tilewright']:.3f}", f"{times[peer]:.3f}", peer, f"{ratio:.2f}"]
        cold = case.get("build_cold_seconds")
        seconds = "" if cold is None else f"{cold:.1f}"
        lines.append([*row, str(floor or ""), f"{case['error_ratio']:.2f}", seconds])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{_gpu_environments(case['environment'] for case in data['cases'])}"


def model_facts(data: dict[str, Any]) -> str:
    """What the table of models does not show: missed limits, peers, memory, builds."""
    cases = [case for case in data["cases"] if "ratio" in case]
    medians = {case["name"]: {k: v["median"] for k, v in case["milliseconds"].items()} for case in cases}
    ratios = {c["name"]: medians[c["name"]][c["best_peer"]] / medians[c["name"]]["tilewright"] for c in cases}
    floors = [case for case in cases if case.get("floor")]
    below = [f"{c['name']} ({ratios[c['name']]:.3f} of {c['floor']})" for c in floors if ratios[c["name"]] < c["floor"]]
    wrong = [f"{c['name']} ({c['error_ratio']:.2f})" for c in cases if c["error_ratio"] > ERROR_LIMIT]
    untuned = [case["name"] for case in floors if "max-autotune" not in case["milliseconds"]]
    lines = [
        f"Below the floor: {', '.join(below)}." if below else "Every floor is reached.",
        f"Errors above {ERROR_LIMIT} times the peer's: {', '.join(wrong)}." if wrong
        else f"No error is above {max(case['error_ratio'] for case in cases):.2f} times the peer's.",
        f"max-autotune was timed for {len(floors) - len(untuned)} of the {len(floors)} models with floors"
        + (f", not for {', '.join(untuned)}." if untuned else "."),
    ]  # fmt: skip
    for case in data["cases"]:
        notes: dict[str, list[str]] = {}
        for peer, note in case.get("notes", {}).items():
            notes.setdefault(note.split(". ")[0].rstrip("."), []).append(peer)
        lines += [f"{case['name']}: {' and '.join(found)}: {note}." for note, found in notes.items()]
    lines += [
        f"{case['name']}: reading its bytes at 4.48 TB/s would take {case['of_bytes_time']:.0%} of the time."
        for case in cases if "of_bytes_time" in case
    ]  # fmt: skip
    most = max(case["arena_bytes"] / case["arena_least_bytes"] for case in cases if case.get("arena_least_bytes"))
    seconds = {
        key: max(case.get(key, 0) for case in cases) for key in ("build_warm_seconds", "load_and_first_call_seconds")
    }
    lines.append(f"Arenas are at most {most:.3f} times the live tensors.")
    lines.append(
        f"With a warm cache builds take at most {seconds['build_warm_seconds']:.1f} s; loading an engine and its first "
        f"call {seconds['load_and_first_call_seconds']:.2f} s."
    )
    return "".join(f"- {line}\n" for line in lines)


def call_table(data: dict[str, Any]) -> str:
    """A row an engine: what calls cost their thread, and the times of first, second and later calls of new sizes,
    and by how much the longest of the first two is longer than later ones."""
    kinds = list(data["calls"][0]["host_microseconds"])
    sizes = ("new sizes: first ms", "second", "later", "stall")
    lines = [["", "steps", "tensors given", *(f"us, {kind}" for kind in kinds), *sizes]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for case in data["calls"]:
        host = [f"{case['host_microseconds'][kind]['median']:.1f}" for kind in kinds]
        times = [[each[key] for each in case["new_sizes"]] for key in ("first_ms", "second_ms", "later_ms")]
        spans = [f"{min(values):.2f} to {max(values):.2f}" for values in times]
        stall = max(max(each["first_ms"], each["second_ms"]) - each["later_ms"] for each in case["new_sizes"])
        lines.append([case["name"], str(case["steps"]), str(case["inputs"]), *host, *spans, f"{stall:.2f}"])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    e = data["environment"]
    return f"{text}\n\n{e['device']}, {e['driver']}, {e['assembler']}, {e['date']}; {_versions(e)}.\n"


def _rate(case: dict[str, Any]) -> str:
    for key, unit in (("tflops", "TFLOP/s"), ("terabytes_a_second", "TB/s")):
        if "tilewright" in case.get(key, {}):
            return f"{case[key]['tilewright']:.3g} {unit}"
    return ""


def _gpu_environments(environments: Iterable[dict[str, Any]]) -> str:
    """A line for each GPU with its software, and the dates on which it was measured."""
    dates: dict[tuple[str, str], set[str]] = {}
    for found in environments:
        device = f"{found['device']}, {found['driver']}, {found['assembler']}"
        dates.setdefault((device, _versions(found)), set()).add(found["date"])
    lines = [f"{device}, {', '.join(sorted(days))}; {versions}." for (device, versions), days in sorted(dates.items())]
    return "\n".join(lines) + "\n"


def _versions(environment: dict[str, Any]) -> str:
    return ", ".join(f"{package} {version}" for package, version in environment["versions"].items() if version)


def kernel_table(data: dict[str, Any]) -> str:
    """A row a case, with the best of its peers, the ratio to it, and the ratio that is asked for."""
    lines = [["", "tilewright ms", "best peer ms", "peer", "peer / tilewright", "floor", "rate"]]
    lines.append(["---", "---:", "---:", "---", "---:", "---:", "---:"])
    for case in data["cases"]:
        times = {name: value["median"] for name, value in case["milliseconds"].items()}
        peer, ratio, floor = case["best_peer"], case["ratio"], case.get("floor")
        row = [case["name"], f"{times['tilewright']:.3g}", f"{times[peer]:.3g}", peer]
        rates = [f"{case[key]:.0f} {unit}" for key, unit in RATES.items() if key in case]
        lines.append([*row, f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}", str(floor or ""), "".join(rates)])
    environment = data["environment"]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{environment['processor']}, {environment['date']}; {_versions(environment)}.\n"


def compile_table(data: dict[str, Any]) -> str:
    """A row a kernel: its first launch when it is compiled, when it is found on disk, and what the run itself takes."""
    lines = [["", "compiled ms", "limit", "found on disk ms", "limit", "of which it runs ms"], ["---", *["---:"] * 5]]
    for case in data["cases"]:
        times = [f"{case['compiled_ms']:.1f}", f"{case['limit_ms']:.0f}", f"{case['cached_ms']:.2f}"]
        lines.append([case["name"], *times, f"{case['cached_limit_ms']:.0f}", f"{case['kernel_ms']:.2f}"])
    environment = data["environment"]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{environment['processor']}, {environment['date']}; {_versions(environment)}.\n"


def build_table(data: dict[str, Any]) -> str:
    """A row a model and kind of sizes: what its engine takes, built fully and quickly, and ONNX Runtime's session."""
    titles = ["kernels", "s", "CPU s", "run ms", "quick kernels", "s", "CPU s", "run ms", "ONNX Runtime s"]
    lines = [["", "sizes", *titles], ["---", "---", *["---:"] * len(titles)]]
    for case in data["cases"]:
        row = [case["name"], case["sizes"]]
        for kind in ("", "quick_"):
            row += [str(case[f"{kind}kernels"]), f"{case[f'{kind}wall_seconds']:.1f}"]
            row += [f"{case[f'{kind}cpu_seconds']:.1f}", f"{case[f'{kind}run_seconds'] * 1e3:.1f}"]
        peer = case["onnxruntime_wall_seconds"]
        lines.append([*row, "-" if peer is None else f"{peer:.2f}"])
    environment = data["environment"]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    machine = f"{environment['processor']}, {environment['threads']} threads, {environment['date']}"
    busy = f"; other work ran on the machine (load {data['load']})" if data["load"] > 0.5 else ""
    return f"{text}\n\n{machine}{busy}; {_versions(environment)}.\n"


def peer_table(data: dict[str, Any]) -> str:
    """A row a model: for each number of threads our time, the best peer's, the peer, and the ratio."""
    counts = list(data["geometric_means"])
    names = {count: f"{count} thread{'s' if count != '1' else ''}" for count in counts}
    columns = [
        f"{names[count]}: {text}" for count in counts for text in ("tilewright ms", "best peer ms", "peer", "ratio")
    ]
    lines = [["", *columns], ["---", *["---:", "---:", "---", "---:"] * len(counts)]]
    cases = {(case["name"], str(case["threads"])): case for case in data["cases"] if "ratio" in case}
    for name in dict.fromkeys(case["name"] for case in data["cases"]):
        row = [name]
        for count in counts:
            case = cases.get((name, count))
            if case is None:
                row += ["-"] * 4
                continue
            times = {key: value["median"] for key, value in case["milliseconds"].items()}
            peer = case["best_peer"]
            row += [f"{times['tilewright']:.2f}", f"{times[peer]:.2f}", peer, f"{case['ratio']:.2f}"]
        lines.append(row)
    means = [["", "", "", f"**{value:.2f}**"] for value in data["geometric_means"].values()]
    lines.append(["geometric mean", *(cell for cells in means for cell in cells)])
    environment = data["environment"]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{environment['processor']}, {environment['date']}; {_versions(environment)}.\n"


def runtime_table(data: dict[str, Any]) -> str:
    """A row a case, a column a runtime, ratios to the peers."""
    cases: list[dict[str, Any]] = data["cases"]
    peers = [
        peer for peer in dict.fromkeys(key for case in cases for key in case["milliseconds"]) if peer != "tilewright"
    ]
    header = ["", "tilewright ms", *(f"{peer} ms" for peer in peers), *(f"{peer} / tilewright" for peer in peers)]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for case in cases:
        times = {key: value["median"] for key, value in case["milliseconds"].items()}
        ours = times["tilewright"]
        row = [case["name"], f"{ours:.2f}", *(f"{times[peer]:.2f}" if peer in times else "-" for peer in peers)]
        lines.append([*row, *(f"{times[peer] / ours:.2f}" if peer in times else "-" for peer in peers)])
    environment = data["environment"]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    machine = f"{environment['processor']}, {environment['threads']} threads, {environment['date']}"
    return f"{text}\n\n{machine}; {_versions(environment)}.\n"


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        renewed = BLOCK.sub(lambda match: match[1] + block(match[2], match[3]) + match[5], text)
        if renewed != text:
            stale.append(path.name)
            if not check:
                path.write_text(renewed, encoding="utf-8")
    print(f"tables: {'stale in ' + ', '.join(stale) if stale else 'up to date'}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
