"""How data sets are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DataConfig:
    """How the data sets of a trainer are shared out.

    Parameters
    ----------
    datasets_to_split : "all" or sequence of str
        Which of them are split among the workers; each worker gets the others whole.
    shuffle : bool or sequence of str
        Which are read in another order each epoch: all, none, or those named. Files are shuffled block by block.
    seed : int
        Of the order.
    uneven : str
        What becomes of a last round with fewer rows than workers: ``"drop"`` leaves it out, ``"keep"`` gives some
        workers one batch less.

    Examples
    --------
    >>> DataConfig(shuffle=["train"]).shuffles("valid")
    False
    """

    datasets_to_split: str | Sequence[str] = "all"
    shuffle: bool | Sequence[str] = False
    seed: int = 0
    uneven: str = "drop"

    def __post_init__(self) -> None:
        if isinstance(self.datasets_to_split, str) and self.datasets_to_split != "all":
            raise ValueError(f"datasets_to_split={self.datasets_to_split!r}: give 'all', or a list of names")
        if isinstance(self.shuffle, str):
            raise ValueError(f"shuffle={self.shuffle!r}: give True, False, or a list of names")
        if self.uneven not in ("drop", "keep"):
            raise ValueError(f"uneven={self.uneven!r}: choose 'drop' or 'keep'")

    def named(self) -> set[str]:
        """Return the data sets that are named in it."""
        split = () if isinstance(self.datasets_to_split, str) else self.datasets_to_split
        shuffled = () if isinstance(self.shuffle, bool) else self.shuffle
        return {*split, *shuffled}

    def splits(self, name: str) -> bool:
        """Whether a data set is split among the workers."""
        return self.datasets_to_split == "all" or name in self.datasets_to_split

    def shuffles(self, name: str) -> bool:
        """Whether a data set is shuffled."""
        return self.shuffle if isinstance(self.shuffle, bool) else name in self.shuffle
