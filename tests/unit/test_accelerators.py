"""Kinds of accelerators, each on a machine that is made of files, and on this one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal._core.commands import Placement
from shoal._core.messages import Ranks
from shoal._runtime.environment import worker_environment
from shoal.engines import accelerators
from shoal.engines.accelerators import ACCELERATORS, CUDA, Accelerator, accelerator_here

KINDS = {kind.name: kind for kind in ACCELERATORS}


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def _no_card_of_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "ACCELERATORS", (with_count(CUDA, lambda root: 0), *ACCELERATORS[1:]))


def with_count(kind: Accelerator, count: Callable[[Path], int]) -> Accelerator:
    return Accelerator(kind.name, kind.resource, kind.variable, kind.backend, count)


NODES = "sys/class/kfd/kfd/topology/nodes"
MACHINES = {
    "ROCm": (
        {
            f"{NODES}/0/properties": "cpu_cores_count 64\nsimd_count 0\n",
            f"{NODES}/1/properties": "cpu_cores_count 0\nsimd_count 304\n",
            f"{NODES}/2/properties": "cpu_cores_count 0\nsimd_count 304\n",
        },
        2,
        ("GPU", "HIP_VISIBLE_DEVICES", "nccl"),
    ),
    "Intel XPU": (
        {
            "sys/class/drm/card0/device/vendor": "0x8086\n",  # a part of the CPU
            "sys/class/drm/card1/device/vendor": "0x8086\n",
            "sys/class/drm/card1/lmem_total_bytes": "17179869184\n",
            "sys/class/drm/card1-DP-1/status": "connected\n",
            "sys/class/drm/card2/device/vendor": "0x10de\n",
        },
        1,
        ("GPU", "ZE_AFFINITY_MASK", "xccl"),
    ),
    "TPU": (
        {"dev/accel0": "", "dev/accel1": "", "dev/accel2": "", "dev/accel3": "", "dev/accelerometer": ""},
        4,
        ("TPU", "TPU_VISIBLE_CHIPS", "xla"),
    ),
    "AWS Trainium": ({"dev/neuron0": "", "dev/neuron1": ""}, 4, ("neuron_cores", "NEURON_RT_VISIBLE_CORES", "xla")),
    "Huawei NPU": (
        {"dev/davinci0": "", "dev/davinci1": "", "dev/davinci_manager": ""},
        2,
        ("NPU", "ASCEND_RT_VISIBLE_DEVICES", "hccl"),
    ),
}


@pytest.mark.parametrize("name", list(MACHINES))
def test_each_kind_is_found_where_it_is(name: str, tmp_path: Path):
    files, count, (resource, variable, backend) = MACHINES[name]
    kind, devices = accelerator_here({}, made(tmp_path, files))
    assert (kind.name, kind.resource, kind.variable, kind.backend) == (name, resource, variable, backend)
    assert devices == [str(index) for index in range(count)]
    assert accelerator_here({variable: "1"}, tmp_path)[1] == (["1"] if count > 1 else [])
    placement = Placement(
        host="h",
        hostname="h",
        ranks=Ranks(
            world_rank=0,
            world_size=1,
            local_rank=0,
            local_world_size=1,
            node_rank=0,
        ),
        devices=("0",),
        device_variable=kind.variable,
    )
    assert worker_environment({}, placement, "run")[variable] == "0"


def test_the_newer_driver_of_tpus(tmp_path: Path):
    kind, devices = accelerator_here({}, made(tmp_path, {"dev/vfio/0": "", "dev/vfio/1": "", "dev/vfio/vfio": ""}))
    assert (kind.name, devices) == ("TPU", ["0", "1"])


def test_apple(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    kind, devices = accelerator_here({}, tmp_path)
    assert (kind.name, kind.resource, kind.variable, kind.backend, devices) == ("Apple MPS", "GPU", "", "gloo", ["0"])


def test_cuda_by_its_driver_s_own_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import pynvml

    monkeypatch.setattr(accelerators, "ACCELERATORS", ACCELERATORS)
    for name, answer in (("nvmlInit", None), ("nvmlShutdown", None), ("nvmlDeviceGetCount", 8)):
        monkeypatch.setattr(pynvml, name, lambda answer=answer: answer)
    assert accelerator_here({}, tmp_path) == (CUDA, [str(index) for index in range(8)])
    assert accelerator_here({"CUDA_VISIBLE_DEVICES": "2,3,9,4"}, tmp_path)[1] == ["2", "3"]
    assert CUDA.devices({"CUDA_VISIBLE_DEVICES": "GPU-ab,GPU-cd"}, tmp_path) == ["GPU-ab", "GPU-cd"]
    assert CUDA.devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []


def test_a_machine_with_none_has_none(tmp_path: Path):
    kind, devices = accelerator_here({}, tmp_path)
    assert (kind.name, devices) == ("CUDA", [])
