"""The launcher on a GPU: numbers and addresses arrive, errors say what is wrong, launches may come from any thread."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.device import handmade
from tilewright.errors import DeviceError, LaunchError
from tilewright.runtime.cuda import driver
from tilewright.runtime.cuda.device import Device, current_device, device
from tilewright.runtime.cuda.launch import launcher
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.program import load
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT, synchronize
from tilewright.targets.nvidia.assemble import AssemblyOptions, DriverAssembler, parse_report, to_ptx
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.registry import get_target


def test_the_gpu_describes_itself(gpu: Device) -> None:
    assert gpu == current_device() and driver.is_available() and driver.version() >= 12000
    assert gpu.multiprocessors > 0 and gpu.l2_bytes > 1 << 20 and gpu.shared_bytes >= 48 << 10
    target = get_target("cuda")
    assert isinstance(target, NvidiaTarget)
    assert target.shared_bytes <= gpu.shared_bytes and target.multiprocessors == gpu.multiprocessors
    with pytest.raises(DeviceError, match="no GPU number 99"):
        device(99)


def test_a_kernel_runs_again_and_again_the_same(gpu: Device, rng: np.random.Generator) -> None:
    start = handmade.start(handmade.SCALE, "scale", handmade.SCALE_PARAMETERS, gpu)
    values = rng.standard_normal(1280, np.float32)
    x = DeviceArray.from_numpy(values)
    for _ in range(3):
        y = DeviceArray.from_numpy(np.full(1280, np.nan, np.float32))
        start(10, 1, 1, LEGACY_DEFAULT, x.address, y.address, 3.0)
        assert np.array_equal(y.numpy(), values * np.float32(3))


def test_numbers_of_every_type_arrive(gpu: Device) -> None:
    start = handmade.start(handmade.NUMBERS, "numbers", handmade.NUMBERS_PARAMETERS, gpu)
    y = DeviceArray.from_numpy(np.zeros(72, np.uint8))
    start(1, 1, 1, LEGACY_DEFAULT, y.address, True, -3, -1000, -70000, -(1 << 40), 0.25, 3.140625, 1.5, 1e300)
    found = y.numpy().tobytes()
    formats = "<b", "<b", "<h", "<i", "<q", "<e", None, "<f", "<d"
    values = [struct.unpack_from(form, found, 8 * n)[0] for n, form in enumerate(formats) if form]
    assert values == [1, -3, -1000, -70000, -(1 << 40), 0.25, 1.5, 1e300]
    assert np.frombuffer(found[48:50], ml_dtypes.bfloat16)[0] == 3.140625


def test_threads_launch_at_once(gpu: Device, rng: np.random.Generator) -> None:
    start = handmade.start(handmade.SCALE, "scale", handmade.SCALE_PARAMETERS, gpu)
    values = rng.standard_normal(128, np.float32)
    x = DeviceArray.from_numpy(values)

    def run(number: int) -> bool:  # a thread of its own has no context at first
        y = DeviceArray.from_numpy(np.zeros(128, np.float32))
        for factor in range(50):
            start(1, 1, 1, LEGACY_DEFAULT, x.address, y.address, float(number + factor))
        return bool(np.array_equal(y.numpy(), values * np.float32(number + 49)))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(16)))


def test_code_of_another_architecture_is_refused(gpu: Device) -> None:
    program = handmade.program(handmade.SCALE, "scale", handmade.SCALE_PARAMETERS, gpu)
    other = "sm_80" if gpu.capability[0] != 8 else "sm_90a"
    with pytest.raises(DeviceError, match=f"compiled for {other}.*compute capability"):
        load(replace(program, architecture=other), gpu)
    with pytest.raises(DeviceError, match="loading kernel 'scale'.*CUDA_ERROR"):
        load(replace(program, image=b"no machine code" * 100), gpu)


def test_shared_memory_up_to_the_limit(gpu: Device) -> None:
    facts = handmade.program(handmade.SCALE, "scale", handmade.SCALE_PARAMETERS, gpu)
    x = DeviceArray.from_numpy(np.ones(128, np.float32))
    launcher(replace(facts, shared_bytes=gpu.shared_bytes), gpu)(1, 1, 1, LEGACY_DEFAULT, x.address, x.address, 2.0)
    assert (x.numpy() == 2).all()
    with pytest.raises(LaunchError, match=f"{gpu.shared_bytes + 16} bytes.*has {gpu.shared_bytes}"):
        launcher(replace(facts, shared_bytes=gpu.shared_bytes + 16), gpu)


def test_grids_beyond_the_limit(gpu: Device) -> None:
    start = handmade.start(handmade.SCALE, "scale", handmade.SCALE_PARAMETERS, gpu)
    with pytest.raises(LaunchError, match="at most"):
        start(1, 65536, 1, LEGACY_DEFAULT, 0, 0, 1.0)
    start(0, 1, 1, LEGACY_DEFAULT, 0, 0, 1.0)  # nothing runs
    synchronize(gpu.ordinal)


@pytest.mark.capability(9)
@pytest.mark.parametrize("size", [2, 4, 16])
def test_clusters(gpu: Device, size: int) -> None:
    start = handmade.start(handmade.RANK, "rank", ("*i32",), gpu, cluster=(size, 1, 1))
    y = DeviceArray.from_numpy(np.full(3 * size, -1, np.int32))
    start(3 * size, 1, 1, LEGACY_DEFAULT, y.address)
    assert y.numpy().tolist() == [*range(size)] * 3
    with pytest.raises(LaunchError, match="multiple"):
        start(3 * size + 1, 1, 1, LEGACY_DEFAULT, y.address)


@pytest.mark.capability(9)
def test_dependent_and_cooperative_launches(gpu: Device) -> None:
    x = DeviceArray.from_numpy(np.ones(128, np.float32))
    for facts in ({"dependent_launch": True}, {"cooperative": True}):
        start = handmade.start(handmade.SCALE, "scale", handmade.SCALE_PARAMETERS, gpu, **facts)
        start(1, 1, 1, LEGACY_DEFAULT, x.address, x.address, 2.0)
        synchronize(gpu.ordinal)
    assert (x.numpy() == 4).all()
    with pytest.raises(DeviceError, match="every CTA on the GPU at once"):
        start(1 << 20, 1, 1, LEGACY_DEFAULT, x.address, x.address, 2.0)


def test_the_drivers_assembler_gives_code_that_runs(gpu: Device) -> None:
    target = NvidiaTarget.for_capability(gpu.capability)
    ptx, _ = to_ptx(handmade.SCALE, target)
    for _ in range(2):  # the second time the driver has it in its cache
        cubin, log = DriverAssembler().assemble(ptx, target.architecture, AssemblyOptions(opt_level=1, line_info=True))
        assert parse_report(log, "scale")[0].registers > 0
    program = handmade.program(handmade.SCALE, "scale", handmade.SCALE_PARAMETERS, gpu)
    x = DeviceArray.from_numpy(np.ones(128, np.float32))
    launcher(replace(program, image=cubin), gpu)(1, 1, 1, LEGACY_DEFAULT, x.address, x.address, 5.0)
    assert (x.numpy() == 5).all()
