"""The engine file: what is written is what is read, and nothing else is accepted."""

import copy
import dataclasses
import hashlib
import json
import math
import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.handmade import COLUMNS, expected, make_package, make_plan
from tilewright import Engine, dtypes
from tilewright.engine import file
from tilewright.engine.archive import EngineArchive
from tilewright.engine.plan_json import plan_from_json, plan_to_json
from tilewright.engine.weights import WEIGHT_ALIGNMENT, Weights
from tilewright.errors import EngineDamagedError, EngineError, EngineTargetError, EngineVersionError
from tilewright.host import host_cpu
from tilewright.runtime.plan import Argument, BufferReference
from tilewright.symbolic import ceil_divide, maximum, symbol


@pytest.fixture(scope="module")
def package():
    return make_package()


@pytest.fixture(scope="module")
def path(package, tmp_path_factory):
    path = tmp_path_factory.mktemp("engine") / "tiny.engine"
    Engine(package).save(path)
    return path


def check(engine: Engine) -> None:
    x = np.arange(6 * COLUMNS, dtype=np.float32).reshape(6, COLUMNS)
    y, cache = engine(x, np.zeros(4, np.int64))
    np.testing.assert_array_equal(y, expected(x))
    np.testing.assert_array_equal(cache, 1)


def write(package, path, **changes) -> None:
    """Save a package with changed manifest entries: what a program with other ideas would write."""
    file.write_package(dataclasses.replace(package, manifest={**package.manifest, **changes}), path)


def test_saved_and_loaded_engines_are_equal(package, path, tmp_path):
    engine = Engine.load(path)
    check(engine)
    built = Engine(package)
    assert engine.plan == built.plan == make_plan()
    assert (engine.inputs, engine.outputs) == (built.inputs, built.outputs)
    assert engine.kernel_name("scale") == "scale kernel"
    engine.save(tmp_path / "again.engine")
    assert (tmp_path / "again.engine").read_bytes() == path.read_bytes()


def test_the_file_is_a_plain_zip_of_standard_files(path, tmp_path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path)
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
    manifest = (tmp_path / "manifest.json").read_bytes()
    guard = f"{hashlib.sha256(manifest).hexdigest()}  manifest.json\n"
    assert (tmp_path / "manifest.sha256").read_text() == guard
    from safetensors.numpy import load_file

    tensors = load_file(tmp_path / "weights.safetensors")
    np.testing.assert_array_equal(tensors["bias"], np.arange(8))


def test_large_members_start_on_pages(package, tmp_path):
    weights = Weights.pack({"bias": np.arange(COLUMNS, dtype=np.float32), "large": np.ones(5000, np.float64)})
    path = tmp_path / "large.engine"
    file.write_package(dataclasses.replace(package, weights=weights), path)
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("weights.safetensors")
        start = entry.header_offset + 30 + len(entry.filename) + len(entry.extra)
        assert start % 4096 == 0
        assert path.read_bytes()[start : start + 8] == weights.data[:8].tobytes()
    mapped = file.read_package(path).weights
    assert mapped.address % WEIGHT_ALIGNMENT == 0


def test_saving_replaces_the_file_at_once(package, path, tmp_path):
    target = tmp_path / "tiny.engine"
    target.write_bytes(b"old")
    Engine(package).save(target)
    check(Engine.load(target))
    assert os.listdir(tmp_path) == ["tiny.engine"]
    with pytest.raises(EngineError, match="cannot write"):
        Engine(package).save(tmp_path / "no folder" / "tiny.engine")


def test_a_loaded_engine_survives_its_replacement(package, tmp_path):
    target = tmp_path / "tiny.engine"
    Engine(package).save(target)
    first = Engine.load(target)
    Engine(package).save(target)
    check(first)


def test_files_that_are_no_engines(tmp_path):
    with pytest.raises(EngineError, match="cannot read"):
        Engine.load(tmp_path / "absent.engine")
    for name, content, message in [
        ("empty", b"", "empty"),
        ("text", b"hello", "no complete zip"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(EngineDamagedError, match=message):
            Engine.load(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("hello", "world")
    with pytest.raises(EngineDamagedError, match="manifest.json is missing"):
        Engine.load(tmp_path / "zip")


def test_other_versions_are_refused(package, tmp_path):
    write(package, tmp_path / "new.engine", version=5)
    with pytest.raises(EngineVersionError, match="format version 5, this tilewright reads versions 2 to 4"):
        Engine.load(tmp_path / "new.engine")
    write(package, tmp_path / "other.engine", format="something else")
    with pytest.raises(EngineDamagedError, match="is not of a tilewright engine"):
        Engine.load(tmp_path / "other.engine")


@pytest.mark.parametrize(
    "target, message",
    [
        ({"features": ["avx1024"]}, "CPU features that this CPU .* lacks: avx1024"),
        ({"triple": "pdp11-unknown-bsd"}, "built for pdp11-unknown-bsd, this machine is"),
        ({"name": "abacus"}, "built for abacus"),
    ],
)
def test_programs_for_other_machines_are_refused(package, tmp_path, target, message):
    (program,) = package.manifest["programs"]
    changed = {**program, "target": {**program["target"], **target}}
    write(package, tmp_path / "other.engine", programs=[changed])
    with pytest.raises(EngineTargetError, match=message):
        Engine.load(tmp_path / "other.engine")
    write(package, tmp_path / "both.engine", programs=[changed, program])
    check(Engine.load(tmp_path / "both.engine"))


def test_versions_of_the_same_system_are_one_platform(package):
    (program,) = package.manifest["programs"]
    triple = host_cpu().triple.replace("-unknown-", "-pc-")
    changed = {**program, "target": {**program["target"], "triple": triple}}
    check(Engine(dataclasses.replace(package, manifest={**package.manifest, "programs": [changed]})))


def test_code_and_data_that_do_not_belong_together_are_refused(package, tmp_path):
    weights = Weights.pack({"bias": np.ones(COLUMNS, np.float32)})  # at another offset
    file.write_package(dataclasses.replace(package, weights=weights), tmp_path / "weights.engine")
    with pytest.raises(EngineDamagedError, match="another plan"):
        Engine.load(tmp_path / "weights.engine")
    (program,) = package.manifest["programs"]
    plan = {**program["plan"], "arena_bytes": 64}
    write(package, tmp_path / "plan.engine", programs=[{**program, "plan": plan}])
    with pytest.raises(EngineDamagedError, match="another plan"):
        Engine.load(tmp_path / "plan.engine")


def test_plans_round_trip_through_json():
    batch = symbol("batch", 1, 64)
    plan = make_plan()
    odd = dataclasses.replace(
        plan.steps[0].choices[0],
        arguments=(
            Argument("f32", math.inf),
            Argument("i64", maximum(ceil_divide(batch, 3), 2)),
            Argument("*u8", BufferReference("arena", "", batch * 64)),
            Argument("i32", 7),
        ),
    )
    plan.steps[0] = dataclasses.replace(plan.steps[0], choices=(odd,))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


@pytest.mark.parametrize(
    "change",
    [
        {"symbols": [["batch", 5, 2]]},
        {"symbols": [["batch", 1]]},
        {"inputs": [{"name": "x", "dtype": "float7", "shape": []}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": [{"terms": [[1, [["unknown", 1]]]]}]}]},
        {"outputs": 3},
        {"arena_bytes": "many"},
        {"scratch_bytes": -1},
        {"steps": [{}]},
    ],
)
def test_malformed_plans_are_refused(change):
    data = {**plan_to_json(make_plan()), **change}
    with pytest.raises(ValueError):
        plan_from_json(data)


SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=12).filter(lambda name: not name.startswith(".padding.") and name != "__metadata__"),
    st.tuples(st.sampled_from(dtypes.DTYPES), SHAPES),
    max_size=8,
)


@given(ARRAYS, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_any_weights_round_trip_and_are_aligned(layout, random):
    arrays = {
        name: np.frombuffer(random.randbytes(math.prod(shape) * dtype.itemsize), np.uint8)
        .copy()
        .view(dtype.numpy)
        .reshape(shape)
        for name, (dtype, shape) in layout.items()
    }
    weights = Weights.parse(Weights.pack(arrays).data)
    assert weights.entries.keys() == arrays.keys()
    assert weights.address % WEIGHT_ALIGNMENT == 0
    for name, array in arrays.items():
        read = weights.array(name)
        assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert weights.offsets[name] % WEIGHT_ALIGNMENT == 0


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-é", min_size=1, max_size=20)
OBJECTS = st.dictionaries(NAMES.map(lambda name: f"kernels/{name}.o"), st.binary(max_size=9000), max_size=6)


@given(OBJECTS, st.binary(max_size=6000), st.integers(0, 3000))
@settings(max_examples=60, deadline=None)
def test_any_package_round_trips_and_large_members_are_on_pages(tmp_path_factory, objects, graph, weight):
    path = tmp_path_factory.mktemp("package") / "some.engine"
    weights = Weights.pack({"w": np.arange(weight, dtype=np.float32)})
    manifest = {"format": file.FORMAT, "version": file.VERSION, "programs": []}
    file.write_package(file.Package(manifest, weights, graph, objects), path)
    read = file.read_package(path)
    assert (read.objects, read.graph) == (objects, graph)
    np.testing.assert_array_equal(read.weights.array("w"), weights.array("w"))
    whole = np.memmap(path, np.uint8, "r")
    base = whole.ctypes.data
    archive = EngineArchive(path)
    for data in archive.members.values():
        if len(data) >= 4096:
            start = np.frombuffer(data, np.uint8)
            offset = whole.tobytes().index(bytes(data))
            assert offset % 4096 == 0 and start.ctypes.data % 4096 == base % 4096


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_are_no_weights_or_harmless(data):
    try:
        weights = Weights.parse(np.frombuffer(data, np.uint8))
    except ValueError:
        return
    for name in weights.entries:
        weights.array(name).tobytes()


@given(st.integers(0, 3 << 20), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_the_digest_sees_every_bit(position, extra):
    data = np.zeros((8 << 20) + extra, np.uint8)
    before = file.digest(data)
    data[position * 2] ^= 1
    assert file.digest(data) != before


def test_engines_are_saved_not_pickled(package):
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(EngineError, match="Save it with"):
            attempt(Engine(package))
