"""The shim's own modules: compiling from types, files beside the cache, microscaling formats, drivers, small tools."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.errors import CompilationError, LaunchError, OutOfResources, TargetError, UnsupportedOperationError
from tilewright.launch import hooks
from tilewright.launch.background import AsyncCompileMode, FutureKernel
from tilewright.launch.driver import Driver, DriverConfig, GPUTarget
from tilewright.settings import settings
from tilewright.shim import cache, compiler, utilities


@tilewright.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 3, mask=i < n)


@tilewright.jit
def broken(x):
    tl.static_assert(False, "never")


SIGNATURE = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
CPU = GPUTarget("cpu", "", 1)


@pytest.mark.parametrize("attributes", [{(0,): [["tt.divisibility", 16]]}, None])
def test_compiling_from_types(attributes: Any) -> None:
    source = compiler.ASTSource(scale, SIGNATURE, {"BLOCK": 64}, attributes)
    again = compiler.ASTSource(scale, SIGNATURE, {(3,): 64}, attributes)
    assert source.hash() == again.hash() != compiler.ASTSource(scale, SIGNATURE, {"BLOCK": 32}, attributes).hash()
    compiled = compiler.compile(source, CPU, {"num_warps": 8})
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    compiled[(1,)](x, out, 64)
    np.testing.assert_array_equal(out, 3 * x)
    assert ("divisibility = 16" in compiled.asm["ttir"]) == (attributes is not None)
    assert compiler.make_backend(CPU).hash() == compiled.target.key


def test_compiling_a_file_of_tile_ir(tmp_path: Path) -> None:
    text = scale.compile({"x": "*f32", "out": "*f32", "n": "i32"}, {"BLOCK": 16}).asm["ttir"]
    path = tmp_path / "scale.ttir"
    path.write_text(text)
    compiled = compiler.compile(str(path), CPU)
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    compiled[(1,)](x, out, 16)
    np.testing.assert_array_equal(out, 3 * x)
    with pytest.raises(CompilationError, match="only Tile IR"):
        compiler.compile(str(tmp_path / "scale.ptx"), CPU)


def test_compiling_mistakes() -> None:
    source = compiler.ASTSource(scale, SIGNATURE, {"BLOCK": 64})
    with pytest.raises(LaunchError, match="unknown options speed"):
        compiler.compile(source, CPU, {"speed": 1})
    with pytest.raises(TargetError, match="no target for the backend 'hip'"):
        compiler.compile(source, GPUTarget("hip", "gfx942", 64))
    with pytest.raises(TargetError, match="no target for the backend 'tpu'"):
        compiler.make_backend(GPUTarget("tpu", 4, 1))
    with pytest.raises(LaunchError, match="no type of a parameter"):
        compiler.type_of("*float33")
    with pytest.raises(TypeError, match="names of parameters"):
        compiler.ASTSource(scale, {0: "*fp32"})  # type: ignore[dict-item]


def test_listening_to_compilations(tmp_path: Path) -> None:
    told: list[Any] = []
    hooks.compilation.listener = lambda **facts: told.append(facts)
    try:
        with settings.scope(cache_directory=tmp_path):
            for _ in range(2):
                tilewright.JITFunction(scale.function).warmup(tl.float32, tl.float32, 64, BLOCK=64, grid=(1,))
    finally:
        hooks.compilation.listener = None
    fresh, cached = told
    assert not fresh["cache_hit"] and cached["cache_hit"] and fresh["metadata"]["name"] == "scale"
    assert fresh["times"].total >= fresh["times"].total_lowering > 0 and fresh["times"].ir_initialization > 0
    assert cached["times"].total_lowering == 0


def test_files_next_to_the_cache(tmp_path: Path) -> None:
    with settings.scope(cache_directory=tmp_path):
        manager = cache.get_cache_manager("key")
        assert manager.get_file("one.txt") is None and not manager.has_file("one.txt")
        path = manager.put("text", "one.txt", binary=False)
        assert Path(path).read_text() == "text" and cache.get_cache_manager("key").get_file("one.txt") == path
        manager.put_group("all", {"one.txt": path})
        assert manager.get_group("all") == {"one.txt": path} and manager.get_group("other") is None
        assert cache.default_cache_dir() == str(tmp_path) and cache.triton_key() == cache.triton_key()
        with pytest.raises(UnsupportedOperationError, match="no remote cache"):
            cache.RedisRemoteCacheBackend("key")


def test_names_of_dtypes() -> None:
    names = {np.float32: "fp32", np.dtype(np.int8): "i8", tl.bfloat16: "bf16", tl.float8e4nv: "fp8e4nv", np.bool_: "u1"}
    assert {key: utilities.canonicalize_dtype(key) for key in names} == names
    assert utilities.canonicalize_ptr_dtype(tl.uint16, True) == "*ku16"
    assert utilities.get_primitive_bitwidth("bf16") == 16 and utilities.type_canonicalisation_dict["double"] == "fp64"
    assert utilities.validate_block_shape([4, 8]) == 32
    for shape, error in (([4, 0], ValueError), (["4"], TypeError)):
        with pytest.raises(error):
            utilities.validate_block_shape(shape)  # type: ignore[arg-type]
    values = [
        (np.zeros(2, np.float32), "*fp32"),
        (1, "i32"),
        (2**40, "i64"),
        (True, "u1"),
        (2.5, "fp32"),
        (None, "constexpr"),
    ]
    for value, name in values:
        assert compiler.mangle_type(value) == name
    assert compiler.mangle_type(1, specialize=True) == "constexpr"


def test_compiling_in_the_background(tmp_path: Path) -> None:
    kernel = tilewright.JITFunction(scale.function)
    with settings.scope(cache_directory=tmp_path), ThreadPoolExecutor(2) as pool:
        with AsyncCompileMode(pool):
            found = [kernel.warmup(tl.float32, tl.float32, 64, BLOCK=block, grid=(1,)) for block in (16, 32)]
            assert all(isinstance(entry, FutureKernel) for entry in found)
            with pytest.raises(RuntimeError, match="does not nest"):
                AsyncCompileMode(pool).__enter__()
        assert [entry.name for entry in found] == ["scale", "scale"]  # type: ignore[union-attr]
        assert len(kernel.cache[0]) == 2
        with pytest.raises(CompilationError, match="never"), AsyncCompileMode(pool):
            broken.warmup(tl.float32, grid=(1,))
        with AsyncCompileMode(pool, ignore_errors=True):
            broken.warmup(tl.float32, grid=(1,))
            assert len(broken.cache[0]) == 1
        assert not broken.cache[0]
        x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
        with AsyncCompileMode(pool):
            kernel[(1,)](x, out, 17, BLOCK=8)
        assert out[:8].tolist() == (3 * x[:8]).tolist()


def test_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "cpu")
    config = DriverConfig()
    assert config.active.get_current_target().backend == "cpu" and config.active.get_current_device() == 0
    assert config.active.utils.get_device_properties(0)["multiprocessor_count"] >= 1
    other = Driver()
    config.set_active(other)
    assert config.active is other
    config.reset_active()
    assert config.active is config.default
    with pytest.raises(ValueError, match="one device, number 0"):
        config.active.set_current_device(1)
    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "tpu")
    with pytest.raises(TargetError, match="choose cpu or cuda"):
        _ = DriverConfig().active


def test_resources_are_reported(tmp_path: Path) -> None:
    import pickle

    error = pickle.loads(pickle.dumps(OutOfResources(200, 100, "shared memory")))
    assert (error.required, error.limit, error.name) == (200, 100, "shared memory")
    assert "shared memory, required: 200, the machine's limit: 100" in str(error)


def test_four_bit_floats(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    from tilewright.shim.mxfp import MAGNITUDES, MXFP4Tensor, MXScaleTensor

    known = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES[1:])])
    assert torch.equal(MXFP4Tensor(known).to(torch.float32), known)
    values = torch.from_numpy(rng.normal(scale=3, size=1000).astype(np.float32))
    found = MXFP4Tensor(values).to(torch.float32)
    nearest = known[(values.clamp(-6, 6)[:, None] - known).abs().argmin(1)]
    assert torch.equal((found - values.clamp(-6, 6)).abs(), (nearest - values.clamp(-6, 6)).abs())
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 9.0])
    assert MXFP4Tensor(ties).to(torch.float32).tolist() == [0, 1, 1, 2, 2, 4, 4, -4, 6]
    for shape, axis in (((4, 6), 1), ((5, 3), 0), ((5, 3), 1)):
        codes = MXFP4Tensor(size=shape, device="cpu").random()
        packed = codes.to_packed_tensor(axis)
        assert packed.shape[axis] == (shape[axis] + 1) // 2
        assert torch.equal(codes.unpack_packed_tensor(packed, axis, shape), codes.data)
    scales = MXScaleTensor(torch.tensor([1.0, 0.5, 2.0**100, 0.0]))
    assert scales.to(torch.float32)[:3].tolist() == [1.0, 0.5, 2.0**100] and scales.data[3] == 255
    assert torch.isnan(scales.to(torch.float32)[3])
    drawn = MXScaleTensor(size=(100,), device="cpu").random(1.0, 8.0).to(torch.float32)
    assert drawn.min() >= 1 and drawn.max() <= 8
    smallest = MXScaleTensor(size=(1,), device="cpu")
    smallest.data = torch.zeros(1, dtype=torch.uint8)
    assert smallest.to(torch.float32).item() == 2.0**-127
