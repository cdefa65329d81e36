"""The kinds of accelerators: how many there are, which variable hides some of them, what exchanges their tensors."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

INTEL = "0x8086"
NEURON_CORES = 2  # of a Trainium or Inferentia2 device


@dataclass(frozen=True)
class Accelerator:
    """A kind of accelerator.

    Attributes
    ----------
    name : str
        What people call it.
    resource : str
        Under which name it is asked for, as in ``resources_per_worker={"GPU": 1}``.
    variable : str
        The environment variable by which a process sees only some of them; empty where there is none.
    backend : str
        What ``torch.distributed`` exchanges tensors on it with.
    torch_device : str
        Torch's name of the kind; empty where torch itself has none.
    count : callable
        Returns how many there are below a root directory, ``/`` on a real machine.
    """

    name: str
    resource: str
    variable: str
    backend: str
    torch_device: str
    count: Callable[[Path], int]

    def devices(self, environment: Mapping[str, str], root: Path = Path("/")) -> list[str]:
        """Return those that this process may use, as the variable would list them."""
        count = self.count(root)
        visible = environment.get(self.variable) if self.variable else None
        if visible is None or count == 0:
            return [str(index) for index in range(count)]
        # As the driver does: the first name that is none hides itself and everything after it.
        usable: list[str] = []
        for name in (name.strip() for name in visible.split(",") if name.strip()):
            if name.lstrip("-").isdigit() and not 0 <= int(name) < count:
                break
            usable.append(name)
        return usable


def _cuda(root: Path) -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0  # no driver, so no device
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _rocm(root: Path) -> int:
    """Count the nodes of AMD's driver that compute: those of CPUs have no SIMD units."""
    nodes = root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")
    return sum(any(_is_simd(line) for line in _text(node).splitlines()) for node in nodes)


def _is_simd(line: str) -> bool:
    name, _, value = line.partition(" ")
    return name == "simd_count" and value.strip().isdigit() and int(value) > 0


def _xpu(root: Path) -> int:
    """Count Intel's cards with memory of their own: those without are part of a CPU."""
    cards = [card for card in root.glob("sys/class/drm/card*") if card.name.removeprefix("card").isdigit()]
    return sum(
        _text(card / "device/vendor").strip() == INTEL and (card / "lmem_total_bytes").exists() for card in cards
    )


def _tpu(root: Path) -> int:
    return _numbered(root / "dev", "accel") or _numbered(root / "dev/vfio", "")


def _trainium(root: Path) -> int:
    return NEURON_CORES * _numbered(root / "dev", "neuron")


def _npu(root: Path) -> int:
    return _numbered(root / "dev", "davinci")


def _mps(root: Path) -> int:
    return int(sys.platform == "darwin" and platform.machine() == "arm64")


ACCELERATORS = (
    Accelerator("CUDA", "GPU", "CUDA_VISIBLE_DEVICES", "nccl", "cuda", _cuda),
    Accelerator("ROCm", "GPU", "HIP_VISIBLE_DEVICES", "nccl", "cuda", _rocm),  # RCCL, under NCCL's name
    Accelerator("Intel XPU", "GPU", "ZE_AFFINITY_MASK", "xccl", "xpu", _xpu),
    Accelerator("Apple MPS", "GPU", "", "gloo", "mps", _mps),
    Accelerator("TPU", "TPU", "TPU_VISIBLE_CHIPS", "xla", "", _tpu),
    Accelerator("AWS Trainium", "neuron_cores", "NEURON_RT_VISIBLE_CORES", "xla", "", _trainium),
    Accelerator("Huawei NPU", "NPU", "ASCEND_RT_VISIBLE_DEVICES", "hccl", "npu", _npu),
)
CUDA = ACCELERATORS[0]


def accelerator_here(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[Accelerator, list[str]]:
    """Return the kind of accelerator of this machine and those that may be used; CUDA and none where there are none."""
    for kind in ACCELERATORS:
        devices = kind.devices(environment, root)
        if devices:
            return kind, devices
    return CUDA, []


def _numbered(directory: Path, name: str) -> int:
    """Count the files of this name with a number behind it."""
    return sum(file.name.removeprefix(name).isdigit() for file in directory.glob(f"{name}*"))


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
