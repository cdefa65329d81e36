"""The accelerators of this machine."""

from __future__ import annotations

from collections.abc import Mapping


def cuda_devices(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the CUDA devices that this process may use, as ``CUDA_VISIBLE_DEVICES`` would list them."""
    count = _count_with_nvml()
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or count == 0:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    # As the driver does: the first name that is none hides itself and everything after it.
    usable: list[str] = []
    for name in names:
        if name.lstrip("-").isdigit() and not 0 <= int(name) < count:
            break
        usable.append(name)
    return usable


def _count_with_nvml() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0  # no driver, so no device
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
