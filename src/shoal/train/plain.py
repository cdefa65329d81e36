"""The framework of :class:`~shoal.train.DataParallelTrainer`: nothing is set up, the function does it all itself."""

from __future__ import annotations

from typing import ClassVar

from shoal._core.contracts import Framework


class PlainFramework(Framework):
    """Sets nothing up. Rank, world size and so on are in the environment and in ``train.get_context()``."""

    preload: ClassVar[tuple[str, ...]] = ("shoal.train.context", "shoal.train.trainer")
