"""Files of torch.export are data: nothing in one runs, whatever it says."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.errors import ImportModelError  # noqa: E402
from tilewright.graph.printer import print_graph  # noqa: E402
from tilewright.graph.reference import run  # noqa: E402
from tilewright.importers import import_model  # noqa: E402
from tilewright.importers.torch_export import import_program, load_program  # noqa: E402


class Model(torch.nn.Module):
    """Parameters that share memory, a buffer with steps, a constant, nested outputs, a dynamic size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.register_buffer("every_other", torch.arange(24.0).reshape(3, 8)[:, ::2])

    def forward(self, x: torch.Tensor, *, extra: torch.Tensor) -> dict[str, Any]:
        hidden = torch.nn.functional.gelu(self.second(self.first(x)), approximate="tanh")
        fours = self.every_other + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"a": hidden.reshape(x.shape[0] * 2, 4), "b": [x + extra, fours]}


@pytest.fixture(scope="module")
def program() -> Any:
    batch = torch.export.Dim("batch", min=2, max=64)
    sizes = {"x": {0: batch}, "extra": {0: batch}}
    return torch.export.export(Model().eval(), (torch.randn(6, 8),), {"extra": torch.randn(6, 8)}, dynamic_shapes=sizes)


@pytest.fixture(scope="module")
def saved(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archives") / "model.pt2"
    torch.export.save(program, path)
    return path


class Touch:
    """A pickle that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def rewritten(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of an archive with changed members; their names are without the archive's folder."""
    with zipfile.ZipFile(source) as archive:
        members = {info.filename.split("/", 1)[1]: archive.read(info) for info in archive.infolist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"model/{name}", data)
    return target


def with_program(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    def apply(members: dict[str, bytes]) -> None:
        data = json.loads(members["models/model.json"])
        change(data)
        members["models/model.json"] = json.dumps(data).encode()

    return rewritten(source, target, apply)


def test_the_same_graph_as_pytorchs_reader(saved: Path, program: Any) -> None:
    ours, theirs = load_program(str(saved)), load_program(str(saved), trust=True)
    text = print_graph(import_program(ours))
    assert text == print_graph(import_program(theirs)) == print_graph(import_model(str(saved), name="exported"))
    assert re.search(r"model \(Model\), first \(Linear\)|Model", text)
    x, extra = torch.randn(5, 8), torch.randn(5, 8)
    for one, other in zip(
        torch.utils._pytree.tree_leaves(ours.module()(x, extra=extra)),
        torch.utils._pytree.tree_leaves(program.module()(x, extra=extra)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("member", ["data/sample_inputs/model.pt", "data/constants/model.pt", "data/weights/model.pt"])
@pytest.mark.parametrize("kind", ["bare", "saved"])
def test_no_pickle_runs(saved: Path, tmp_path: Path, member: str, kind: str) -> None:
    """Nor in examples, which are not read; PyTorch's reader runs them, when it is asked to by `trust`."""
    mark = tmp_path / "ran"
    buffer = io.BytesIO()
    if kind == "bare":
        buffer.write(pickle.dumps({"first.weight": Touch(mark)}))
    else:
        torch.save({"first.weight": Touch(mark)}, buffer)

    def change(members: dict[str, bytes]) -> None:
        members[member] = buffer.getvalue()

    path = rewritten(saved, tmp_path / "it.pt2", change)
    if "sample" in member:
        assert import_model(path).inputs
    else:
        with pytest.raises(ImportModelError, match=r"trust=True.*--trust"):
            import_model(path)
    assert not mark.exists()
    with pytest.raises(ImportModelError):
        import_model(path, trust=True)
    assert mark.exists() or kind == "bare"


@pytest.mark.parametrize("section", ["weights", "constants"])
@pytest.mark.parametrize("name", ["weight_0", "tensor_0", "custom_obj_0", "opaque_obj_0", "../../../etc/passwd"])
def test_no_pickled_member_runs(saved: Path, tmp_path: Path, section: str, name: str) -> None:
    mark = tmp_path / "ran"

    def change(members: dict[str, bytes]) -> None:
        config = json.loads(members[f"data/{section}/model_{section}_config.json"])
        for payload in config["config"].values():
            payload.update(path_name=name, use_pickle=True)
        members[f"data/{section}/model_{section}_config.json"] = json.dumps(config).encode()
        buffer = io.BytesIO()
        torch.save(Touch(mark), buffer)
        members[f"data/{section}/{name}"] = buffer.getvalue()

    with pytest.raises(ImportModelError, match="without running it"):
        load_program(str(rewritten(saved, tmp_path / "it.pt2", change)))
    assert not mark.exists()


def nodes(data: dict[str, Any]) -> list[dict[str, Any]]:
    return data["graph_module"]["graph"]["nodes"]  # type: ignore[no-any-return]


RUN = "__import__('os').system('touch MARK')"
TEXTS = {
    "operator of torch": lambda d: nodes(d)[0].update(target="torch.load"),
    "operator of a module": lambda d: nodes(d)[0].update(target="torch.os.system"),
    "operator that writes": lambda d: nodes(d)[0].update(target="torch.ops.aten.save.default"),
    "operator that maps a file": lambda d: nodes(d)[0].update(target="torch.ops.aten.from_file.default"),
    "operator of a class": lambda d: nodes(d)[0].update(target="torch.ops.aten.__class__.default"),
    "operator of operator": lambda d: nodes(d)[0].update(target="_operator.call"),
    "operator loaded": lambda d: nodes(d)[0].update(target="torch.ops.load_library"),
    "extension": lambda d: nodes(d)[0].update(target="#aten:x"),
    "name of a node": lambda d: nodes(d)[0].update(name=f"x\n{RUN}\n#"),
    "name of a value": lambda d: d["graph_module"]["graph"]["inputs"][0]["as_tensor"].update(name=f"x=({RUN})"),
    "name of an argument": lambda d: nodes(d)[0]["inputs"][0].update(name=f"x=({RUN})", kind=2),
    "name of a parameter": lambda d: d["graph_module"]["signature"]["input_specs"][0]["parameter"].update(
        parameter_name=f'x"+{RUN}+"'
    ),
    "guards": lambda d: d.update(guards_code=[RUN]),
    "size": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": RUN, "hint": None}}
    ),
    "size by a method": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": "Symbol('s0').__class__", "hint": None}}
    ),
    "size in a text": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": f'Max("{RUN}", 2)', "hint": None}}
    ),
    "size that is a lambda": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": f"(lambda: {RUN})()", "hint": None}}
    ),
    "size that explodes": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": "9**9**9**9", "hint": None}}
    ),
    "size that explodes by calls": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": "Pow(Integer(9), Integer(999999999))", "hint": None}}
    ),
    "factorial": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": "factorial(99999999)", "hint": None}}
    ),
    "size of many characters": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": "+".join(["s0"] * 100_000), "hint": None}}
    ),
    "symbol of a great number": lambda d: d["range_constraints"].update(u99999999999={"min_val": 0, "max_val": 9}),
    "tree of another class": lambda d: d["graph_module"]["module_call_graph"][0]["signature"].update(
        in_spec='[1, {"type": "collections.namedtuple", "context": "os.system", "children_spec": []}]'
    ),
    "tree with an enum": lambda d: d["graph_module"]["module_call_graph"][0]["signature"].update(
        out_spec='[1, {"type": "builtins.dict", "context": "[{\\"__enum__\\": true, \\"fqn\\": \\"os:system\\"}]", '
        '"children_spec": []}]'
    ),
    "nested": lambda d: nodes(d)[0]["inputs"][0].update(arg=nested(200)),
    "device": lambda d: d["graph_module"]["graph"]["tensor_values"]["x"]["device"].update(type=f"cpu{RUN}"),
    "meta": lambda d: nodes(d)[0]["metadata"].update(
        source_fn_stack="x,torch.hub.load", custom='{"a": 1}', from_node='[{"name": "x"}]', torch_fn="a;b"
    ),
    "custom object": lambda d: d["graph_module"]["signature"]["input_specs"].append(
        {"custom_obj": {"arg": {"name": "x", "class_fqn": "os.system"}, "custom_obj_name": "y"}}
    ),
    "verifier": lambda d: d.update(verifiers=["os.system"]),
}  # fmt: skip
HARMLESS = ("guards", "meta")  # left out


def nested(depth: int) -> dict[str, Any]:
    argument: dict[str, Any] = {"as_int": 1}
    for _ in range(depth):
        argument = {"as_string_to_argument": {"a": argument}}
    return argument


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_runs(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = with_program(saved, tmp_path / "it.pt2", TEXTS[name])
    if name in HARMLESS:
        assert import_model(path).inputs
    else:
        with pytest.raises(ImportModelError) as found:
            import_model(path)
        assert len(str(found.value)) < 2000
    assert not list(tmp_path.glob("MARK*"))


def test_weights_stay_in_their_bytes(saved: Path, tmp_path: Path) -> None:
    for sizes, strides, offset in [
        ([1 << 40], [0], 0),
        ([8, 8], [8, 1], 9),
        ([9, 8], [8, 1], 0),
        ([1 << 62, 8], [1, 1], 0),
    ]:

        def change(members: dict[str, bytes], meta: Any = (sizes, strides, offset)) -> None:
            config = json.loads(members["data/weights/model_weights_config.json"])
            config["config"]["first.weight"]["tensor_meta"].update(
                sizes=[{"as_int": n} for n in meta[0]], strides=[{"as_int": n} for n in meta[1]],
                storage_offset={"as_int": meta[2]},
            )  # fmt: skip
            members["data/weights/model_weights_config.json"] = json.dumps(config).encode()

        with pytest.raises(ImportModelError, match="leaves its"):
            load_program(str(rewritten(saved, tmp_path / "it.pt2", change)))


def test_weights_of_another_byte_order_are_refused(saved: Path, tmp_path: Path) -> None:
    path = rewritten(saved, tmp_path / "big.pt2", lambda members: members.update(byteorder=b"big"))
    with pytest.raises(ImportModelError, match=r"big\.pt2: its weights are stored in another byte order"):
        load_program(str(path))


@pytest.mark.parametrize("member", ["models/model.json", "data/weights/weight_0"])
def test_what_is_damaged_is_named_with_its_file(saved: Path, tmp_path: Path, member: str) -> None:
    path = rewritten(saved, tmp_path / "damaged.pt2", lambda members: members.update({member: b"["}))
    with pytest.raises(ImportModelError) as found:
        load_program(str(path))
    assert str(found.value).startswith(f"{path}: ") and str(found.value).count(str(path)) == 1


def test_what_a_pickle_holds_is_named_without_the_advice_to_run_it(saved: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"first.weight": Touch(tmp_path / "ran")}, buffer)
    path = rewritten(
        saved, tmp_path / "it.pt2", lambda members: members.update({"data/weights/model.pt": buffer.getvalue()})
    )
    with pytest.raises(ImportModelError, match=r"no pickle of tensors alone \(it names [\w.]+\)") as found:
        load_program(str(path))
    assert "Re-running" not in str(found.value)


def test_archives_that_expand_are_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/models/model.json", b" " * (300 << 20))
    with pytest.raises(ImportModelError, match="more than"):
        load_program(str(path))
    deep = rewritten(saved, tmp_path / "deep.pt2", lambda members: members.update({"models/model.json": b"[" * 10**6}))
    with pytest.raises(ImportModelError, match="no JSON"):
        load_program(str(deep))
    twice = tmp_path / "twice.pt2"
    with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(twice, "w") as both:
        for folder in ("model", "another"):
            for info in archive.infolist():
                both.writestr(f"{folder}/{info.filename.split('/', 1)[1]}", archive.read(info))
    with pytest.raises(ImportModelError, match="two members"):
        load_program(str(twice))


def test_the_format_of_earlier_versions(program: Any, tmp_path: Path) -> None:
    """Weights are a pickle there; the one that makes tensors alone is read."""
    from torch._export.serde.serialize import serialize

    artifact = serialize(program)
    parts = {"json": artifact.exported_program, "state": artifact.state_dict, "constants": artifact.constants}

    def write(path: Path, parts: dict[str, bytes]) -> Path:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("version", "8.1")
            archive.writestr("serialized_exported_program.json", parts["json"])
            archive.writestr("serialized_state_dict.pt", parts["state"])
            archive.writestr("serialized_constants.pt", parts["constants"])
        return path

    found = import_program(load_program(str(write(tmp_path / "earlier.pt2", parts))))
    assert print_graph(found) == print_graph(import_program(program))
    buffer = io.BytesIO()
    torch.save({"first.weight": Touch(tmp_path / "ran")}, buffer)
    with pytest.raises(ImportModelError, match="no pickle of tensors alone"):
        load_program(str(write(tmp_path / "bad.pt2", {**parts, "state": buffer.getvalue()})))
    assert not (tmp_path / "ran").exists()


def test_compressed_members_together_are_bounded(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        for info in archive.infolist():
            bomb.writestr(info.filename, archive.read(info))
        for number in range(9):
            bomb.writestr(f"model/data/weights/weight_{100 + number}", bytes(32 << 20))
    with pytest.raises(ImportModelError, match="compressed members expand to"):
        load_program(str(path))


def with_pickled_weights(saved: Path, path: Path, data: bytes) -> Path:
    return rewritten(saved, path, lambda members: members.update({"data/weights/model.pt": data}))


def pickled(weights: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()


def test_pickled_weights_that_share_bytes_of_the_file_are_refused(saved: Path, tmp_path: Path) -> None:
    """A directory that names one member of a zip a hundred times would make a hundred tensors of it."""
    source = zipfile.ZipFile(io.BytesIO(pickled({str(number): torch.zeros(1 << 12) for number in range(100)})))
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as shared:
        for info in source.infolist():
            first = next((entry for entry in shared.filelist if entry.file_size == info.file_size == 1 << 14), None)
            if first is None:
                shared.writestr(info.filename, source.read(info))
            else:
                entry = copy.copy(first)
                entry.filename = entry.orig_filename = info.filename
                shared.filelist.append(entry)
    assert len(zipfile.ZipFile(data).infolist()) > 100 and len(data.getvalue()) < 100_000
    with pytest.raises(ImportModelError, match="members have .* bytes, and the file has"):
        load_program(str(with_pickled_weights(saved, tmp_path / "it.pt2", data.getvalue())))


@pytest.mark.parametrize("kind", ["repeated", "meta", "nested"])
def test_pickled_weights_that_are_no_numbers_in_memory_are_refused(saved: Path, tmp_path: Path, kind: str) -> None:
    tensor = {
        "repeated": lambda: torch.zeros(1).expand(1 << 36),
        "meta": lambda: torch.zeros(4, device="meta"),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(4)]),
    }[kind]()
    with pytest.raises(ImportModelError, match="holds other things than tensors|is no pickle of tensors alone"):
        load_program(str(with_pickled_weights(saved, tmp_path / "it.pt2", pickled({"every_other": tensor}))))


def append_product(data: dict[str, Any], left: Any, right: Any, name: str, target: str = "_operator.mul") -> None:
    graph = data["graph_module"]["graph"]
    arguments = [{"name": letter, "arg": value, "kind": 1} for letter, value in (("a", left), ("b", right))]
    node = {"target": target, "inputs": arguments, "outputs": [{"as_sym_int": {"as_name": name}}], "metadata": {}}
    graph["nodes"].append(node)
    graph["sym_int_values"][name] = {"as_int": 1}


def squared(data: dict[str, Any], first: Any, times: int) -> None:
    value = first
    for number in range(times):
        append_product(data, value, value, f"square_{number}")
        value = {"as_sym_int": {"as_name": f"square_{number}"}}


def through_tensors(data: dict[str, Any]) -> None:
    """Sizes that grow by way of tensors that have them."""
    graph = data["graph_module"]["graph"]
    value: Any = {"as_int": 3}
    for number in range(6):
        append_product(data, value, value, f"square_{number}")
        append_product(
            data, {"as_sym_int": {"as_name": f"square_{number}"}}, {"as_int": 4}, f"p{number}", "_operator.pow"
        )
        size = {"as_sym_ints": [{"as_name": f"p{number}"}]}
        inputs = [("size", size), ("fill_value", {"as_float": 1.0})]
        graph["nodes"].append({
            "target": "torch.ops.aten.full.default",
            "inputs": [{"name": name, "arg": entry, "kind": 1} for name, entry in inputs],
            "outputs": [{"as_tensor": {"name": f"t{number}"}}], "metadata": {},
        })  # fmt: skip
        graph["tensor_values"][f"t{number}"] = graph["tensor_values"]["x"]
        inputs = [("self", {"as_tensor": {"name": f"t{number}"}}), ("dim", {"as_int": 0})]
        graph["nodes"].append({
            "target": "torch.ops.aten.sym_size.int",
            "inputs": [{"name": name, "arg": entry, "kind": 1} for name, entry in inputs],
            "outputs": [{"as_sym_int": {"as_name": f"k{number}"}}], "metadata": {},
        })  # fmt: skip
        graph["sym_int_values"][f"k{number}"] = {"as_int": 1}
        value = {"as_sym_int": {"as_name": f"k{number}"}}


BOMBS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "power": (lambda d: append_product(d, {"as_int": 7}, {"as_int": 10**9}, "p", "_operator.pow"), "no number up to 8"),
    "power of a size": (
        lambda d: append_product(d, {"as_int": 7}, {"as_sym_int": {"as_name": "sym_size_int_2"}}, "p", "_operator.pow"),
        "no number up to 8",
    ),
    "shift": (
        lambda d: append_product(d, {"as_int": 1}, {"as_int": 2**62}, "p", "_operator.lshift"),
        "no number up to 8",
    ),
    "text": (lambda d: append_product(d, {"as_string": "x"}, {"as_int": 2**40}, "p"), "no number"),
    "squares": (lambda d: squared(d, {"as_int": 2**62}, 40), "numbers of over 4096 bits"),
    "squares of a size": (lambda d: squared(d, {"as_sym_int": {"as_name": "sym_size_int_2"}}, 40), "over 4096 bits"),
    "through tensors": (through_tensors, "over 4096 bits"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_arithmetic_on_sizes_is_bounded(saved: Path, tmp_path: Path, name: str) -> None:
    """PyTorch runs it while it reads the program: these would take years or all memory."""
    change, message = BOMBS[name]
    with pytest.raises(ImportModelError, match=message):
        load_program(str(with_program(saved, tmp_path / "it.pt2", change)))


def test_some_arithmetic_on_sizes_is_read(saved: Path, tmp_path: Path) -> None:
    assert load_program(str(with_program(saved, tmp_path / "it.pt2", lambda d: squared(d, {"as_int": 3}, 5))))


def test_what_does_not_fit_is_an_error_without_pytorchs_log(
    saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def change(members: dict[str, bytes]) -> None:
        config = json.loads(members["data/weights/model_weights_config.json"])
        config["config"]["every_other"]["tensor_meta"].update(sizes=[{"as_int": 5}], strides=[{"as_int": 1}])
        members["data/weights/model_weights_config.json"] = json.dumps(config).encode()

    with pytest.raises(ImportModelError, match="cannot decompose"):
        import_model(rewritten(saved, tmp_path / "it.pt2", change))
    assert "Traceback" not in capfd.readouterr().err


def test_constants_that_are_negated_views() -> None:
    class Negated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("imaginary", torch.tensor([1 + 2j, 3 - 4j]).conj().imag)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.imaginary

    module = Negated().eval()
    assert module.imaginary.is_neg()
    graph = import_program(torch.export.export(module, (torch.zeros(2),)))
    (found,) = run(graph, {"x": np.zeros(2, np.float32)}).values()
    assert found.tolist() == [-2.0, 4.0]
