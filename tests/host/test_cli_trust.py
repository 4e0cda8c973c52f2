"""The command line and engines from somebody else: keys, signatures, names that would control the terminal."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from tilewright import Engine, compile, load
from tilewright.cli.console import _Terminal
from tilewright.cli.main import application
from tilewright.cli.tensors import random_input, save_outputs
from tilewright.engine.file import GRAPH, MANIFEST
from tilewright.errors import (
    EngineDamagedError,
    EngineError,
    EngineUntrustedError,
    InputError,
    MissingDependencyError,
    ShapeError,
    SigningKeyError,
    TilewrightError,
    TimingCacheError,
    printable,
)
from tilewright.launch.ahead import AheadOfTime
from tilewright.measure.record import TimingCache
from tilewright.runtime.plan import TensorSpec
from tilewright.symbolic import Expression, symbol
from tools.fuzz.engine_files import fit_symbol, read_members, sealed, small_engine
from tools.fuzz.targets import engine_forged

ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\x08\x7f\x9b31m\u202egnp\u2066\ud800"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trust")
    small_engine().save(folder / "small.engine")
    return folder


def command(*arguments: object) -> tuple[int, str, BaseException | None]:
    """Exit code, everything printed, and the error that ended the command."""
    result = CliRunner().invoke(application(), list(map(str, arguments)))
    return result.exit_code, result.output, result.exception


def test_a_key_signs_and_only_its_engines_run(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    mine, other, signed = tmp_path / "mine", tmp_path / "other", tmp_path / "signed.engine"
    for key in (mine, other):
        assert command("keygen", key)[0] == 0
    assert (mine.stat().st_mode & 0o777) == 0o600
    assert isinstance(command("keygen", mine)[2], SigningKeyError)
    code, text, _ = command("sign", folder / "small.engine", "--key", mine, "-o", signed)
    assert code == 0 and "signed by" in text
    code, text, _ = command("verify", signed, "--trusted-key", f"{other}.pub", "--trusted-key", f"{mine}.pub")
    assert code == 0 and "signed by the trusted key" in text
    digest = hashlib.sha256(signed.read_bytes()).hexdigest()
    assert "it is the expected file" in command("verify", signed, "--expect-sha256", digest)[1]
    for name in ("verify", "run", "bench", "inspect"):
        for choice in (("--trusted-key", f"{other}.pub"), ("--expect-sha256", "0" * 64)):
            error = command(name, signed, *choice)[2]
            assert isinstance(error, EngineUntrustedError), (name, choice, error)
        assert isinstance(
            command(name, folder / "small.engine", "--trusted-key", f"{mine}.pub")[2], EngineUntrustedError
        )
    assert command("run", signed, "--trusted-key", f"{mine}.pub", "--expect-sha256", digest)[0] == 0


def test_without_cryptography_the_error_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)  # type: ignore[arg-type]
    (tmp_path / "key").write_text("-----BEGIN PRIVATE KEY-----\n")
    (tmp_path / "key.pub").write_text("-----BEGIN PUBLIC KEY-----\n")
    engine = folder / "small.engine"
    for arguments in (["keygen", tmp_path / "new"], ["sign", engine, "--key", tmp_path / "key"],
                      ["verify", engine, "--trusted-key", tmp_path / "key.pub"],
                      ["run", engine, "--trusted-key", tmp_path / "key.pub"]):  # fmt: skip
        error = command(*arguments)[2]
        assert isinstance(error, MissingDependencyError) and "tilewright[sign]" in str(error), (arguments, error)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["run", "bench"])
def test_with_rebuild_no_machine_code_of_the_file_is_read(folder: Path, tmp_path: Path, name: str) -> None:
    members = read_members((folder / "small.engine").read_bytes())
    members = {key: b"no object file" if key.endswith(".o") else data for key, data in members.items()}
    (tmp_path / "forged.engine").write_bytes(sealed(members))
    assert isinstance(command(name, tmp_path / "forged.engine")[2], EngineError)
    more = ("--seconds", "0") if name == "bench" else ()
    code, text, error = command(name, tmp_path / "forged.engine", "--rebuild", *more)
    assert code == 0, (text, error)


def renamed(folder: Path, path: Path) -> Path:
    """The engine with names that would control a terminal wherever a file has names of its own."""
    package = Engine.read(folder / "small.engine")._package
    manifest = json.loads(json.dumps(package.manifest))
    manifest |= {"producer": ESCAPES, "name": ESCAPES, "remarks": [ESCAPES], "fusion": [ESCAPES], "source": ESCAPES}
    for program in manifest["programs"]:
        for kernel in program["kernels"].values():
            kernel["name"] = ESCAPES
    Engine(dataclasses.replace(package, manifest=manifest)).save(path)
    return path


def test_names_in_a_file_do_not_reach_the_terminal(folder: Path, tmp_path: Path) -> None:
    path = renamed(folder, tmp_path / "odd.engine")
    for arguments in (["inspect"], ["inspect", "--evidence"], ["inspect", "--json"], ["bench", "--seconds", "0"],
                      ["bench", "--seconds", "0", "--profile"], ["run"], ["run", "--compare", "torch"]):  # fmt: skip
        _, text, error = command(arguments[0], path, *arguments[1:])
        assert error is None or isinstance(error, (TilewrightError, SystemExit)), repr(error)
        assert not CONTROL.search(text + str(error)), arguments
    assert not CONTROL.search(repr(Engine.read(path)))


def test_names_of_inputs_and_sizes_in_messages_are_printable(folder: Path, tmp_path: Path) -> None:
    members = read_members((folder / "small.engine").read_bytes())
    text = members[MANIFEST].decode().replace('"batch"', '"n\\u001b[2J"').replace('"picked"', '"p\\u001b[2J"')
    manifest = json.loads(text)
    fit_symbol(members, manifest)
    members[MANIFEST] = json.dumps(manifest).encode()
    path = tmp_path / "odd.engine"
    path.write_bytes(sealed(members))
    for arguments in (["run"], ["run", "--size", "k=3"], ["run", "--input", "z=f.npy"], ["inspect"],
                      ["run", "--size", "n\x1b[2J=400"], ["bench", "--seconds", "0"]):  # fmt: skip
        _, printed, error = command(arguments[0], path, *arguments[1:])
        assert not CONTROL.search(printed + str(error)), arguments
    with pytest.raises(InputError) as caught:
        Engine.load(path).run({"x": np.ones((2, 8), np.float32)})
    assert "\\x1b[2J" in str(caught.value) and not CONTROL.search(str(caught.value))


def test_pages_hold_any_name(folder: Path, tmp_path: Path) -> None:
    path = renamed(folder, tmp_path / "odd.engine")
    page = tmp_path / "page.html"
    assert command("inspect", path, "--html", page)[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text and text.count("</script>") == 2


def test_text_is_printable_and_the_rest_stays() -> None:
    assert printable("ünï\tcode\n│") == "ünï\tcode\n│"
    assert printable("\x1b[2J\x9b\u202e\ud800") == "\\x1b[2J\\x9b\\u202e\\ud800"
    out = io.StringIO()
    console = _Terminal(file=out, force_terminal=True, color_system="standard", width=60)
    console.print("a\x1bb", style="bold")
    assert out.getvalue() == "\x1b[1ma\\x1bb\x1b[0m\n"  # our own styles are control sequences still


def test_nothing_is_written_in_the_place_of_what_is_no_file(folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "y.npy"
    os.mkfifo(pipe)
    with pytest.raises(EngineError, match="not a regular file"):
        save_outputs({"y": np.ones(1)}, tmp_path)
    with pytest.raises(TimingCacheError, match="not a regular file"):
        TimingCache([]).write(pipe)
    os.mkfifo(tmp_path / "k.o")
    with pytest.raises(OSError, match="not a regular file"):
        AheadOfTime("k", b"", "").write(tmp_path)
    path = folder / "small.engine"
    for arguments in (["build", path, "-o"], ["inspect", path, "--html"], ["tune", "merge", path, "-o"]):
        error = command(*arguments, pipe)[2]
        assert isinstance(error, TilewrightError) and "not a regular file" in str(error), (arguments, error)


def test_another_runtime_gets_no_model_from_outside_the_folders_it_looks_in(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "model.onnx"
    outside.write_bytes(b"")
    package = Engine.read(folder / "small.engine")._package
    path = tmp_path / "engines" / "small.engine"
    path.parent.mkdir()
    Engine(dataclasses.replace(package, manifest={**package.manifest, "source": str(outside)})).save(path)
    error = command("run", path, "--compare", "onnxruntime")[2]
    assert "needs the model that the engine was built from" in str(error)


def test_reading_an_engine_runs_none_of_its_code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def linked(*arguments: object, **options: object) -> None:
        pytest.fail("machine code of the file is linked")

    monkeypatch.setattr("tilewright.engine.cpu_program.load_kernels", linked)
    for path in (folder / "small.engine", renamed(folder, tmp_path / "odd.engine")):
        engine_forged.ask(Engine.read(path))
        for arguments in (["inspect", path, "--json"], ["inspect", path, "--html", tmp_path / "page.html"],
                          ["verify", path], ["tune", "show", path]):  # fmt: skip
            assert command(*arguments)[0] == 0, arguments


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"f32", [10, 16]', b'"f32", [10, 16, 3]'),
        (b'["table", null]', b'["table", [["kind", "panels"], ["transposed", true], ["width", 0]]]'),
        (b'["table", null]', b'["table", [["kind", "order"], ["axes", [0, 7]]]]'),
        (b'["table", null]', b'["table", [["kind", "taps"], ["groups", 0], ["width", 0]]]'),
        (b'"axis": 1', b'"axis": 1e999'),
        (b'["batch", 1, 64]', b'["batch", 1, 99999999999999999999999999999999]'),
        (b'"relu"', b'"\\u001b[2J"'),
        (b'"order": [0, 2, 1]', b'"order": [0, 2, 2]'),
    ],
)
def test_forged_graphs_are_refused_by_errors_of_ours(folder: Path, tmp_path: Path, old: bytes, new: bytes) -> None:
    members = read_members((folder / "small.engine").read_bytes())
    assert old in members[GRAPH]
    members[GRAPH] = members[GRAPH].replace(old, new, 1)
    path = tmp_path / "forged.engine"
    path.write_bytes(sealed(members))
    with pytest.raises(EngineDamagedError) as caught:
        load(path, rebuild="always", target="cpu")
    assert not CONTROL.search(str(caught.value))


@pytest.mark.parametrize("size", [symbol("n") - 9, symbol("n") * 2**61])
def test_impossible_shapes_of_random_inputs_are_reported(size: Expression) -> None:
    with pytest.raises(ShapeError, match="choose other sizes"):
        random_input(TensorSpec("x", "float32", (size, 3), None), {"n": 5}, np.random.default_rng(0))


def test_what_is_built_again_does_not_depend_on_odd_names_of_targets(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = read_members((folder / "small.engine").read_bytes())
    manifest = json.loads(members[MANIFEST])
    manifest["programs"][0]["target"]["name"] = ESCAPES
    members[MANIFEST] = json.dumps(manifest).encode()
    path = tmp_path / "odd.engine"
    path.write_bytes(sealed(members))
    for rebuild in (True, "always"):
        assert load(path, rebuild=rebuild).target == "cpu"
    assert "building the engine again, for cpu" in caplog.text and not CONTROL.search(caplog.text)


def test_warnings_about_a_model_are_printable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = helper.make_node("Relu", ["x"], ["a\x1b[2J"])
    last = helper.make_node("Relu", ["a\x1b[2J"], ["y"])
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    wrong = [helper.make_tensor_value_info("a\x1b[2J", TensorProto.FLOAT, [2, 4])]
    graph = helper.make_graph([node, last], "g", tensors[:1], tensors[1:], value_info=wrong)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    compile(tmp_path / "m.onnx", target="cpu")
    assert "the declared shape is ignored" in caplog.text and not CONTROL.search(caplog.text)
