"""`tilewright quantize`: build a quantized engine or checkpoint, with a table of the error of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tilewright.cli.build import TrustOption, check_written
from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.precision import DataOption, load_data
from tilewright.cli.progress import BuildProgress

if TYPE_CHECKING:
    from tilewright.quant.quantize import Quantization

_OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Engine file to write. For a language model, a name without .engine writes a checkpoint folder "
        "(int4-weights and int8-weights); an interrupted run resumes when repeated.",
    ),
]


def quantize(
    model: Annotated[Path, typer.Argument(help="MODEL.onnx, MODEL.pt2 or a Hugging Face checkpoint folder.")],
    output: _OutputOption = None,
    data: DataOption = None,
    scheme: Annotated[
        str,
        typer.Option(
            help="int8: activation ranges from --data. int8-dynamic: ranges found at run time, products only. "
            "fp8, fp8-dynamic: the same in float8 e4m3; multiplied on GPUs from sm_89. "
            "int8-weights, int4-weights: products of floats by weights in few bits."
        ),
    ] = "int8",
    observer: Annotated[
        str, typer.Option(help="How to find ranges: minmax, percentile (99.99 %), mse or entropy.")
    ] = "minmax",
    method: Annotated[
        str,
        typer.Option(
            help="How to round weights: nearest; with --data, gptq or awq (int8-weights, int4-weights), or smooth "
            "(int8), which first moves magnitude from inputs to weights."
        ),
    ] = "nearest",
    group: Annotated[
        int | None, typer.Option(help="Inputs that share a scale, 0 for all; by default 64 for int4, all for int8.")
    ] = None,
    correct_bias: Annotated[
        bool,
        typer.Option("--correct-bias", help="Correct the mean shift that rounding causes in products over --data."),
    ] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Keep this layer in floats; its name is in the table. Repeat for each layer."),
    ] = None,
    target: Annotated[str, typer.Option(help="What to compile for: auto (this CPU), or a target's name.")] = "auto",
    trust: TrustOption = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress and no table.")] = False,
) -> None:
    """Build an engine with 8-bit products and convolutions, or few-bit weights, and report the error of each layer."""
    if model.is_dir() and output is not None and output.suffix != ".engine":
        own = {"--data": data, "--observer": observer != "minmax", "--method": method != "nearest",
               "--correct-bias": correct_bias, "--target": target != "auto", "--trust": trust}  # fmt: skip
        return _checkpoint(model, output, scheme, group, exclude or [], own, quiet)
    _check_model(model)
    path = output or Path(f"{model.resolve().stem}.engine")
    check_written("-o", path)
    from tilewright.quant.quantize import quantize as quantized

    with BuildProgress(f"Quantizing {path.name}", terminal(stderr=True, quiet=quiet)) as progress:
        found = quantized(
            model, load_data(data), scheme, observer=observer, method=method, group=group, correct_bias=correct_bias,
            exclude=exclude or [], target=target.split(","), trust=trust, progress=progress,
        )  # fmt: skip
        progress("save", path.name, 0.0)
        found.engine.save(path)
    if not quiet:
        show(found, path)


def _language_model(folder: Path) -> str | None:
    """The `model_type` of a checkpoint folder that generates text; None of another one."""
    from tilewright.importers.huggingface import read_settings
    from tilewright.llm.families import LLM_FAMILIES

    kind = read_settings(folder / "config.json").get("model_type")
    return kind if isinstance(kind, str) and kind in LLM_FAMILIES else None


def _check_model(model: Path) -> None:
    """Raise `typer.BadParameter` for what no engine can be quantized from."""
    if model.suffix == ".engine":
        raise wrong_usage(f"{model} is an engine; quantize the model that it was built from")
    kind = _language_model(model) if model.is_dir() else None
    if kind is not None:
        raise wrong_usage(
            f"{model} is a language model ({kind}), which has no engine file; -o FOLDER --scheme int4-weights writes a "
            "checkpoint folder for `tilewright generate` and `serve`"
        )


def _checkpoint(
    model: Path, output: Path, scheme: str, group: int | None, exclude: list[str], others: dict[str, Any], quiet: bool
) -> None:
    """Write a checkpoint folder; `others` are the options that it has no use for, and whether they were given."""
    for option, given in others.items():
        if given:
            raise wrong_usage(
                f"{option} is for engines (-o NAME.engine); a checkpoint folder is rounded to the nearest"
            )
    from tilewright.quant.checkpoint import quantize_checkpoint

    with BuildProgress(f"Quantizing {output.name}", terminal(stderr=True, quiet=quiet)) as progress:
        found = quantize_checkpoint(model, output, scheme, group=group, exclude=exclude, progress=progress)
    if not quiet:
        console = terminal()
        table = Table("layer", "outputs x inputs", "scheme", "error of the weights")
        for row in found.layers:
            error = "written by an earlier run" if row.error is None else f"{row.error:.2%}"
            table.add_row(row.name, f"{row.shape[0]} x {row.shape[1]}", "float" if row.reason else scheme,
                          row.reason or error)  # fmt: skip
        console.print(table)
        console.print(f"{found.folder}: {found.bytes_after / 1e6:.1f} MB of weights, of {found.bytes_before / 1e6:.1f}")


def show(found: Quantization, path: Path) -> None:
    """Print the table of layers, the difference of each output, and the file."""
    console = terminal()
    table = Table("layer", "op", "scheme", "range", "error", title=None)
    for row in found.layers:
        scheme = found.scheme if row.reason is None else "float"
        scheme += ", stored as floats" if row.stored_as_floats else ""
        limits = "" if row.range is None else f"{row.range[0]:.4g} … {row.range[1]:.4g}"
        table.add_row(row.name, row.op, scheme, limits, row.reason or ("" if row.error is None else f"{row.error:.2%}"))
    console.print(table)
    for name, error in found.errors.items():
        console.print(f"output {name} differs by {error:.2%} (root mean square)")
    floats = {row.name: row.stored_as_floats for row in found.layers if row.stored_as_floats}
    for reason in dict.fromkeys(floats.values()):
        names = [name for name, why in floats.items() if why == reason]
        console.print(f"weights stored as floats, of {', '.join(names)}: {reason}")
    for remark in found.remarks:
        console.print(remark)
    console.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {len(found.engine.plan.steps)} steps")
