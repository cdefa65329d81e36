"""Kinds of accelerators, each on a machine that is made of files, and on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal._core.commands import Placement
from shoal._core.messages import Ranks
from shoal._runtime import accelerators
from shoal._runtime.accelerators import ACCELERATORS, CUDA, Accelerator, accelerator_here
from shoal._runtime.environment import worker_environment

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
    return Accelerator(kind.name, kind.resource, kind.variable, kind.backend, kind.torch_device, count)


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


# ---- what torch makes of them ---------------------------------------------------------------------------------------


class Module:
    """Torch's module of a kind of device, as far as it is used."""

    def __init__(self, there: bool = True):
        self.there = there
        self.current: object = None

    def is_available(self) -> bool:
        return self.there

    def set_device(self, device: object) -> None:
        self.current = device


@pytest.mark.parametrize(
    ("resources", "module", "devices", "backend"),
    [
        ({"GPU": 2.0}, "xpu", ["xpu:0", "xpu:1"], "cpu:gloo,xpu:xccl"),
        ({"NPU": 1.0}, "npu", ["npu:0"], "cpu:gloo,npu:hccl"),
        ({"GPU": 1.0}, "backends.mps", ["mps:0"], "gloo"),
        ({"GPU": 1.0}, "cuda", ["cuda:0"], "cpu:gloo,cuda:nccl"),
        ({"GPU": 1.0}, None, ["cpu"], "gloo"),
        ({"TPU": 4.0}, None, ["cpu"], "gloo"),  # torch reaches TPUs through torch_xla alone
        ({"CPU": 1.0}, "cuda", ["cpu"], "gloo"),
    ],
)
def test_a_worker_s_devices_and_what_exchanges_their_tensors(  # noqa: PLR0917  pytest gives them by name
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    resources: dict[str, float],
    module: str | None,
    devices: list[str],
    backend: str,
):
    import torch

    from shoal.train.torch import device as where

    if module == "npu" and not os.environ.get("IN_ITS_OWN_PROCESS"):  # torch never forgets the name of a backend
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", request.node.nodeid]
        alone = subprocess.run(
            command, cwd=request.config.rootpath, env={**os.environ, "IN_ITS_OWN_PROCESS": "1"}, check=False
        )
        assert alone.returncode == 0
        return
    if module == "npu":
        torch.utils.rename_privateuse1_backend("npu")
    for name in ("cuda", "xpu", "npu"):
        monkeypatch.setattr(torch, name, Module(there=name == module), raising=False)
    monkeypatch.setattr(torch.backends, "mps", Module(there=module == "backends.mps"))
    setup = SimpleNamespace(resources=resources)
    session = SimpleNamespace(task=setup, ranks=SimpleNamespace(local_rank=0))
    monkeypatch.setattr(where.sessions, "current", lambda what: session)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = where.get_devices()
    assert [str(device) for device in found] == devices
    assert where.default_backend(found[0]) == backend
    if module in ("cuda", "xpu", "npu") and found[0].type != "cpu":
        where.use_device(found[0])
        assert getattr(torch, module).current == found[0]
