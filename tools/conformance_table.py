"""The results of `conformance.py` as one JSON document, and as the tables of docs/results/conformance.md."""

from __future__ import annotations

import collections
import re
from typing import Any

Entry = dict[str, Any]
OTHER = "not explained"
_COUNTS = ("cases", "not run", "skipped", "passed", "failed")
# (in the case's id, in the error's type and message, why the case does not pass); the first that matches is taken.
_CHAIN = "reads the exception that the reference chains behind its error"
_IR = "reads the reference's IR or GPU code"
_INSIDE = "reads state inside the reference's compiler, cache or tuner"
_WORDS = "expects the reference's wording"
REASONS: tuple[tuple[str, str, str], ...] = (
    (r"test_reduce\[.*-None-True\]", r"too many indices", "3.9 refuses the test's `scalar_pointer[None, :]` too"),
    (r"", r"DID NOT RAISE|should not be allowed", "accepted here, refused there"),
    (r"", r"DID NOT WARN", "a remark of the compiler here, a Python warning there"),
    (r"", r" in 'None'|assert 'None' ==|assert None\b|'__traceback__'", _CHAIN),
    (r"", r"KeyError: '(ttir|ttgir|llir|ptx|amdgcn|sass)'|ttgir|\bptx\b|'arith\.|'%v: |assert 'kernel ", _IR),
    (r"", r"No module named 'triton\.(_C|_filecheck|experimental)", _INSIDE),
    (r"", r"has no attribute '(used_global_vals|cache_key|src|__del__)'|fractional_top_k", _INSIDE),
    (r"test_prune_configs_fractional_top_k", r"", _INSIDE),
    (r"test_specialize\[", r"assert \d == \d", "a signature holds more here: divisibility by 2, 4 and 8 too"),
    (r"test_changed_line_numbers", r"", "a cached kernel stays valid here when its lines move"),
    (r"", r"no remote cache", "there is no remote cache here"),
    (r"test_preload", r"the signature is one of", "a preloaded signature is held to its kernel's name here"),
    (r"", r"Regex pattern did not match|should (mention|point)|not in err_msg|AutotunerError|The result o", _WORDS),
    (r"", r"timeout", "takes longer than the limit on two cores"),
)


def reason(case: str, entry: Entry) -> str:
    """Why a case does not pass: the first entry of `REASONS` that matches, or `OTHER`."""
    error = f"{entry.get('type', '')}: {entry.get('message', '')} {entry['outcome']}"
    return next(
        (text for where, pattern, text in REASONS if re.search(where, case) and re.search(pattern, error)), OTHER
    )


def file_results(file: str, listed: list[Entry], outcomes: dict[str, Entry]) -> Entry:
    """Counts of one test file; `listed` are the cases that were chosen, `outcomes` what became of them."""
    cases = [entry["case"] for entry in listed if entry["case"] in outcomes]
    counts = collections.Counter(outcomes[case]["outcome"] for case in cases)
    failed = [case for case in cases if outcomes[case]["outcome"] not in ("passed", "skipped")]
    reasons = collections.Counter(reason(case, outcomes[case]) for case in failed)
    skips = collections.Counter(
        outcomes[case].get("message", "") for case in cases if outcomes[case]["outcome"] == "skipped"
    )
    return {
        "file": file,
        "cases": len(listed),
        "not run": len(listed) - len(cases),
        "skipped": counts["skipped"],
        "passed": counts["passed"],
        "failed": len(failed),
        "reasons": dict(reasons.most_common()),
        "skips": dict(skips.most_common()),
        "failures": [_failure(case, outcomes[case]) for case in failed],
    }


def _failure(case: str, entry: Entry) -> Entry:
    message = re.sub(r"\S*/(test/unit/)", r"\1", entry.get("message", "")).partition("\n")[0]
    return {"case": case.partition("::")[2], "why": reason(case, entry), "error": f"{entry.get('type')}: {message}"}


def markdown(data: Entry) -> str:
    """Both tables: the test files, and the tutorials."""
    lines = [
        "| test file | cases | not run | skipped | run | passed | failed | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *(_row(entry["file"], entry) for entry in data["files"]),
    ]
    for title, kind in (("all marked cases", True), ("all other cases", False)):
        chosen = [entry for entry in data["files"] if entry["marked"] == kind]
        total = {name: sum(entry[name] for entry in chosen) for name in _COUNTS}
        lines.append(_row(f"**{title}**", {**total, "reasons": {}}))
    reasons: collections.Counter[str] = collections.Counter()
    for entry in data["files"]:
        reasons.update(entry["reasons"])
    lines += ["", "| why a case does not pass | cases |", "| --- | ---: |"]
    lines += [f"| {text} | {count} |" for text, count in reasons.most_common()]
    lines += ["", "| tutorial | result | seconds |", "| --- | --- | ---: |"]
    lines += [f"| {entry['name']} | {entry['outcome']} | {entry['seconds']:.0f} |" for entry in data["tutorials"]]
    place = data["environment"]
    tail = f"{data['reference']}. {place['processor']}, {place['threads']} threads, {place['date']}."
    return "\n".join([*lines, "", tail, ""])


def _row(title: str, entry: Entry) -> str:
    run = entry["passed"] + entry["failed"]
    share = f"{entry['passed'] / run:.2%}" if run else ""
    counts = (entry["cases"], entry["not run"], entry["skipped"], run, entry["passed"], entry["failed"])
    return f"| {title} | {' | '.join(map(str, counts))} | {share} |"
