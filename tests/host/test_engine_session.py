"""Calling an engine: binding inputs and outputs, shapes, kinds of tensors, threads."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.host.handmade import COLUMNS, expected, make_engine
from tilewright.errors import InputError, ShapeError
from tilewright.settings import settings


@pytest.fixture(scope="module")
def engine():
    return make_engine()


@pytest.fixture
def generator(request):
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def cache() -> np.ndarray:
    return np.zeros(4, np.int64)


@pytest.mark.parametrize("batch", [1, 5, 6, 64])
@pytest.mark.parametrize("threads", [1, 3])
def test_one_engine_serves_every_batch(engine, generator, batch, threads):
    x, counter = generator.standard_normal((batch, COLUMNS), np.float32), cache()
    outputs = engine.run({"x": x, "cache": counter}, threads=threads)
    assert list(outputs) == ["y", "cache_out"]
    np.testing.assert_allclose(outputs["y"], expected(x), rtol=1e-6, atol=1e-6)
    assert outputs["cache_out"] is counter
    np.testing.assert_array_equal(counter, 1)


def test_call_by_position_and_by_name(engine):
    x = np.ones((2, COLUMNS), np.float32)
    y, _ = engine(x, cache=cache())
    np.testing.assert_allclose(y, expected(x))
    with pytest.raises(InputError, match="twice"):
        engine(x, x=x)
    with pytest.raises(InputError, match="3 inputs given"):
        engine(x, x, x)


def test_outputs_are_fresh_unless_given(engine):
    x = np.ones((2, COLUMNS), np.float32)
    first = engine.run({"x": x, "cache": cache()})["y"]
    kept = first.copy()
    second = engine.run({"x": x * 3, "cache": cache()})["y"]
    np.testing.assert_array_equal(first, kept)
    assert not np.shares_memory(first, second)
    given = np.empty((2, COLUMNS), np.float32)
    assert engine.run({"x": x, "cache": cache()}, out={"y": given})["y"] is given
    np.testing.assert_array_equal(given, kept)


def test_out_is_checked(engine):
    inputs = {"x": np.ones((2, COLUMNS), np.float32), "cache": cache()}
    with pytest.raises(ShapeError, match=r"\[2, 8\], got \[3, 8\]"):
        engine.run(inputs, out={"y": np.empty((3, COLUMNS), np.float32)})
    with pytest.raises(ShapeError, match="contiguous"):
        engine.run(inputs, out={"y": np.empty((COLUMNS, 2), np.float32).T})
    with pytest.raises(InputError, match=r"out: output 'y' is float64"):
        engine.run(inputs, out={"y": np.empty((2, COLUMNS))})
    with pytest.raises(InputError, match="unknown output 'z'"):
        engine.run(inputs, out={"z": np.empty(1)})


def test_wrong_inputs_are_explained(engine):
    x = np.ones((2, COLUMNS), np.float32)
    cases = [
        ({"x": x}, InputError, "missing: cache"),
        ({"x": x, "cache": cache(), "z": x}, InputError, "unknown: z"),
        ({"x": x[0], "cache": cache()}, ShapeError, r"'x' has 1 dimensions \[8\].*batch"),
        ({"x": x[:, :4], "cache": cache()}, ShapeError, "'x': dimension 1 is 4, the engine was built for 8"),
        ({"x": np.ones((65, 8), np.float32), "cache": cache()}, ShapeError, r"dimension 0 \(batch\) is 65.*1\.\.64"),
        ({"x": np.ones((0, 8), np.float32), "cache": cache()}, ShapeError, r"is 0, outside.*1\.\.64"),
        ({"x": x.astype(np.float64), "cache": cache()}, InputError, r"float64.*float32.*astype"),
        ({"x": x.astype(">f4"), "cache": cache()}, InputError, "'x' is >f4"),
        ({"x": object(), "cache": cache()}, InputError, "cannot read an object"),
        ({"x": [["a"] * 8], "cache": cache()}, InputError, "do not make a float32 tensor"),
        ({"x": x, "cache": np.zeros(8, np.int64)[::2]}, ShapeError, "'cache' is written in place"),
        ({"x": x, "cache": np.broadcast_to(np.int64(0), (4,))}, ShapeError, "'cache' is written in place"),
    ]
    for inputs, error, message in cases:
        with pytest.raises(error, match=message):
            engine.run(inputs)
    frozen = cache()
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        engine.run({"x": x, "cache": frozen})


def test_written_memory_must_not_be_shared(engine):
    memory = np.zeros(64 + 4, np.float32)
    x, y = memory[:16].reshape(2, COLUMNS), memory[8:24].reshape(2, COLUMNS)
    with pytest.raises(InputError, match="output 'y' is written in place and shares memory with input 'x'"):
        engine.run({"x": x, "cache": cache()}, out={"y": y})
    with pytest.raises(InputError, match="input 'cache' is written in place and shares memory with input 'x'"):
        engine.run({"x": x, "cache": memory[8:16].view(np.int64)})
    engine.run({"x": x, "cache": cache()}, out={"y": memory[16:32].reshape(2, COLUMNS)})


def test_views_of_any_layout_are_taken(engine, generator):
    wide = generator.standard_normal((16, 3, COLUMNS), np.float32)
    for x in (wide[::2, 1], wide[:4, 0].T.copy().T, np.frombuffer(b"\0" + wide[0].tobytes(), np.uint8)[1:].view("f4")):
        x = x.reshape(-1, COLUMNS)
        np.testing.assert_allclose(engine.run({"x": x, "cache": cache()})["y"], expected(x), rtol=1e-6, atol=1e-6)
    lists = wide[0].tolist()
    np.testing.assert_allclose(engine.run({"x": lists, "cache": cache()})["y"], expected(wide[0]), rtol=1e-6, atol=1e-6)


def test_torch_in_torch_out(engine):
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 2 * COLUMNS, requires_grad=True)[:, ::2]
    counter = torch.zeros(4, dtype=torch.int64)
    y, cache_out = engine(x, counter)
    assert isinstance(y, torch.Tensor) and cache_out is counter and counter.tolist() == [1] * 4
    np.testing.assert_allclose(y.numpy(), expected(x.detach().numpy()), rtol=1e-6, atol=1e-6)
    out = torch.empty(3, COLUMNS)
    assert engine.run({"x": x, "cache": counter}, out={"y": out})["y"] is out
    assert torch.equal(out, y)
    with pytest.raises(InputError, match=r"\.to\(torch\.float32\)"):
        engine(x.double(), counter)
    with pytest.raises(InputError, match=r"tensor\.cpu\(\)"):
        engine(torch.empty(3, COLUMNS, device="meta"), counter)
    with pytest.raises(ShapeError, match="contiguous"):
        engine(x, torch.zeros(8, dtype=torch.int64)[::2])


def test_dlpack_in_and_its_library_out(engine):
    class Namespace:
        @staticmethod
        def from_dlpack(array):
            return Foreign(np.from_dlpack(array))

    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __array_namespace__(self):
            return Namespace

    x = np.ones((2, COLUMNS), np.float32)
    y, _ = engine(Foreign(x), cache())
    assert isinstance(y, Foreign)
    np.testing.assert_allclose(y.array, expected(x))


@pytest.mark.parametrize("parallel", ["auto", "threads"])
def test_several_python_threads_run_one_engine(engine, parallel):
    failures = []

    def work(index: int) -> None:
        counter = cache()
        for number in range(100):
            x = np.full((1 + (index * 17 + number) % 64, COLUMNS), index + number, np.float32)
            y = engine.run({"x": x, "cache": counter}, threads=2)["y"]
            if not np.array_equal(y, expected(x)):
                failures.append((index, number))
        if not (counter == 100).all():
            failures.append(index)

    with settings.scope(parallel=parallel):
        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not failures


def test_profile_times_every_step(engine):
    rows = engine.profile({"x": np.ones((6, COLUMNS), np.float32), "cache": cache()}, runs=3)
    assert [(row["name"], row["kernel"]) for row in rows] == [
        ("scale", "scale kernel"),
        ("twice", "twice_large kernel"),
        ("count", "increment kernel"),
    ]
    assert all(0 <= row["milliseconds"] < 1000 for row in rows)
    assert rows[0]["bytes"] == 6 * 64


def test_loading_and_running_imports_no_compiler(tmp_path):
    make_engine().save(tmp_path / "tiny.engine")
    code = f"""
import sys
import numpy as np
from tilewright import Engine, load
engine = load({str(tmp_path / "tiny.engine")!r})
engine.run({{"x": np.ones((2, 8), np.float32), "cache": np.zeros(4, np.int64)}})
allowed = "runtime engine loading settings errors dtypes symbolic host once forks precision garbage".split()
bad = [name for name in sys.modules if name.split(".")[0] in ("torch", "onnx", "safetensors")]
tables = ("tilewright.targets", "tilewright.targets.families")  # names of compilers, which they do not import
bad += [name for name in sys.modules if name.startswith("tilewright.") and name.split(".")[1] not in allowed
        and name not in tables]
bad += [name for name in sys.modules if name in ("tilewright.build.builder", "tilewright.build.plan_codegen")]
sys.exit(", ".join(bad) or 0)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
