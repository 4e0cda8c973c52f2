"""The results of `conformance.py` as one JSON document, and as the tables of docs/conformance.md."""

from __future__ import annotations

import collections
import re
from typing import Any

Entry = dict[str, Any]
OTHER = "not explained"
# (in the case's id, in the error's type and message, why the case does not pass); the first that matches is taken.
REASONS: tuple[tuple[str, str, str], ...] = (
    (r"test_reduce\[.*-None-True\]", r"too many indices", "3.9 refuses the test's `scalar_pointer[None, :]` too"),
    (r"test_atomic_unsupported_type|test_math_member_fn_rejects", r"DID NOT RAISE", "accepted here, refused there"),
    (r"", r"DID NOT RAISE", "accepted here, refused there"),
    (r"", r" in 'None'|assert None$|__cause__", "reads the exception that the reference chains behind its error"),
    (r"", r"KeyError: '(ttir|ttgir|llir|ptx|amdgcn|sass)'|ttgir|\bptx\b", "reads the reference's IR or GPU code"),
    (r"", r"No module named 'triton\.(_C|_filecheck|experimental)", "reads modules inside the reference"),
    (r"", r"Regex pattern did not match|should (mention|point)|not in err_msg", "expects the reference's wording"),
    (r"", r"timeout", "takes longer than the limit on two cores"),
)


def reason(case: str, entry: Entry) -> str:
    """Why a case does not pass: the first entry of `REASONS` that matches, or `OTHER`."""
    error = f"{entry.get('type', '')}: {entry.get('message', '')} {entry['outcome']}"
    return next((text for where, what, text in REASONS if re.search(where, case) and re.search(what, error)), OTHER)


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
        "| test file | cases | skipped | run | passed | failed | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
        *(_row(entry["file"], entry) for entry in data["files"]),
    ]
    for title, kind in (("all marked cases", True), ("all other cases", False)):
        chosen = [entry for entry in data["files"] if entry["marked"] == kind]
        total = {name: sum(entry[name] for entry in chosen) for name in ("cases", "skipped", "passed", "failed")}
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
    counts = (entry["cases"], entry["skipped"], run, entry["passed"], entry["failed"])
    return f"| {title} | {' | '.join(map(str, counts))} | {share} |"
