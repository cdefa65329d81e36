"""Whether the framework of a trainer is there, and as new as what it is tested with."""

from __future__ import annotations

import importlib.metadata
import warnings


def require(package: str, *, extra: str, tested: str, trainer: str) -> None:
    """Check that a package is installed; warn where it is older than the oldest that is tested.

    Raises
    ------
    ImportError
        If it is not installed; the message names the extra that brings it.
    """
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise ImportError(f'{trainer} needs {package}, which is not installed: pip install "shoal[{extra}]"') from error
    if _numbers(version) < _numbers(tested):
        warnings.warn(f"{package} {version} is installed; {trainer} is tested with {tested} and later", stacklevel=3)


def _numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit())
        numbers.append(int(digits) if digits else 0)
    return tuple(numbers)
