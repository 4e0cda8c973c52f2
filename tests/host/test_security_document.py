"""The limits that docs/guide/security.md states are those of the code, and its commands and options exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.cli.main import application
from tilewright.engine import archive, bounded_json, file, plan_json, signatures, weights
from tilewright.graph import inference
from tilewright.graph.passes import fuse_draft
from tilewright.importers import (
    huggingface,
    onnx,
    onnx_structure,
    shapes,
    torch_archive,
    torch_schema,
    torch_size_bounds,
)
from tilewright.settings import MOST_THREADS
from tilewright.symbolic import SizeReader

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "security.md").read_text(encoding="utf-8")


def mebibytes(count: int) -> str:
    return f"{count >> 20} MiB"


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("members of the zip; bytes of a name", f"{archive.MOST_MEMBERS:,}; {archive.LONGEST_NAME}"),
        ("`manifest.json`", mebibytes(file.MOST_MANIFEST_BYTES)),
        ("`graph.json`", mebibytes(file.MOST_GRAPH_BYTES)),
        ("header of the weights", mebibytes(weights._HEADER_LIMIT)),
        ("depth of JSON; values in one JSON text", f"{bounded_json.MOST_DEPTH}; {bounded_json.MOST_VALUES:,}"),
        ("dimensions of a weight", f"{weights._MOST_DIMENSIONS}"),
        ("symbols of a plan; letters of a symbol's name", f"{plan_json._MOST_SYMBOLS:,}; {plan_json._LONGEST_SYMBOL}"),
        (
            "depth of a size expression; parts of one; power of a factor",
            f"{SizeReader.MOST_DEPTH}; {SizeReader.MOST_PARTS:,}; 8",
        ),
        ("numbers in size expressions", f"2^{SizeReader.LARGEST.bit_length() - 1}"),
        ("parts of all size expressions of a file, counted as they are read", f"{SizeReader.MOST_WORK:,}"),
        ("signatures; bytes of a key file", f"{signatures.MOST_SIGNATURES}; {signatures._LARGEST_KEY_FILE >> 10} KiB"),
        (
            "nodes of an ONNX model, its functions expanded; of the imported graph",
            f"{onnx_structure.MOST_MODEL_NODES:,}; {onnx.MOST_GRAPH_NODES:,}",
        ),
        (
            "dimensions of a tensor; elements of a tensor",
            f"{inference.MOST_DIMENSIONS}; 2^{inference.MOST_TENSOR_ELEMENTS.bit_length() - 1}",
        ),
        ("terms of a symbolic size", f"{shapes.MOST_TERMS}"),
        (
            "JSON of a `.pt2` file; its compressed members, expanded, together; members of its zip",
            "; ".join([mebibytes(torch_archive._LARGEST_JSON)] * 2 + [f"{torch_archive._MOST_MEMBERS:,}"]),
        ),
        (
            "bits of a number that a `.pt2` file's arithmetic on sizes computes, estimated; powers and shifts",
            f"{torch_size_bounds._MOST_BITS:,.0f}; {torch_schema.LARGEST_POWER}",
        ),
        (
            "`config.json` and the index of shards; header of a safetensors file",
            f"{mebibytes(huggingface._LARGEST_CONFIG)}; {mebibytes(huggingface._LARGEST_HEADER)}",
        ),
        (
            "operations in one fused kernel",
            f"{3 * fuse_draft.MOST_GROUP_NODES // 2} (longer groups are split)",
        ),
        ("threads of a run", f"{MOST_THREADS:,}"),
    ],
)
def test_the_page_states_the_limits_of_the_code(limit: str, value: str) -> None:
    assert f"| {limit} | {value} |" in PAGE


def test_the_page_names_commands_and_options_that_exist() -> None:
    for command in ("keygen", "sign", "verify", "run", "bench", "inspect", "build"):
        shown = CliRunner().invoke(application(), [command, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0 and (f"tilewright {command}" in PAGE or f"`{command}`" in PAGE)
        named = re.findall(rf"tilewright {command} \S+ (--[a-z0-9-]+)", PAGE)
        assert all(option in shown.output for option in named), (command, named)
