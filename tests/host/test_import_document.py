"""docs/internals/importers.md: its example runs, and its tables are those of the rules (--update-golden)."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from tilewright.errors import UnsupportedOperationError
from tilewright.importers import import_model, onnx_ops, onnx_refused, torch_ops
from tilewright.importers.families import ENCODER_FAMILIES
from tilewright.importers.rules import RuleTable

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "importers.md"


def example_output(code: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "example.py", "exec"), {"__name__": "example"})
    return printed.getvalue().rstrip() + "\n"


def report() -> str:
    """The error of a model with an operation that has no rule."""
    from onnx import parser

    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
        classifier (string[n] text) => (string[n, k] words) { [split] words = com.microsoft.AttnLSTM(text) }
    """)
    with pytest.raises(UnsupportedOperationError) as error:
        import_model(model)
    return str(error.value) + "\n"


def table(title: str, sections: Iterable[RuleTable]) -> str:
    lines = [f"### {title}", "", "| section | operations |", "|---|---|"]
    for section in sections:
        names: dict[str, None] = {}
        for name in sorted(section.rules):
            names[
                name.split("::")[1]
                if "::" in name
                else name.removeprefix("aten.").removeprefix("torchvision.").split(".")[0]
            ] = None
        lines.append(f"| {section.title} | {' '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines) + "\n"


def tables() -> str:
    families = f"### Hugging Face families (`model_type`)\n\n{', '.join(f'`{name}`' for name in ENCODER_FAMILIES)}\n"
    aten = table(f"ATen ({len(torch_ops.RULES)} overloads)", torch_ops.SECTIONS)
    others = "`Constant`, `If`, `Loop`, `Scan`, those of sequences and optionals"
    standard = table(f"ONNX ({len(onnx_ops.RULES)} operations, and {others})", onnx_ops.SECTIONS)
    kinds: dict[str, list[str]] = {}
    for name, (reason, _) in sorted(onnx_refused.REASONS.items()):
        kinds.setdefault(reason, []).append(f"`{name}`")
    refused = "".join(f"| {reason} | {' '.join(names)} |\n" for reason, names in kinds.items())
    refused = f"### ONNX operations that are refused\n\n| reason | operations |\n|---|---|\n{refused}"
    return f"{aten}\n{standard}\n{refused}\n{families}"


def fill(page: str) -> str:
    """The page with its generated parts."""
    (code,) = re.findall(r"<!-- example -->\n```python\n(.*?)```", page, re.DOTALL)
    for mark, text in (("output", example_output(code)), ("report", report())):
        pattern = rf"(<!-- {mark} -->\n```\n).*?(```)"
        page = re.sub(pattern, lambda found, text=text: found[1] + text + found[2], page, flags=re.DOTALL)  # type: ignore[misc]
    return page[: page.index("<!-- tables -->")] + f"<!-- tables -->\n{tables()}"


def test_page(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    if request.config.getoption("--update-golden"):
        PAGE.write_text(fill(page), encoding="utf-8")
    else:
        assert page == fill(page)
