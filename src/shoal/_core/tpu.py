"""Slices of TPUs: how many machines a topology has, and how many chips each of them.

Shapes as the documentation of Cloud TPU gives them: machines of a slice of several have 4 chips each; a single
machine of the flat generations (v5e, v6e) has 1, 4 or 8.
"""

from __future__ import annotations

import math
import re

CHIPS_OF_A_MACHINE = 4
FLAT = frozenset({"V2", "V3", "V5E", "V6E"})  # two dimensions; the others have three
SOLID = frozenset({"V4", "V5P", "TPU7X"})
ONE_MACHINE = {(1, 1): 1, (2, 2): 4, (2, 4): 8}  # of v5e and v6e


def slice_of(topology: str, accelerator_type: str) -> tuple[int, int]:
    """Return how many machines a slice has, and how many chips each.

    Examples
    --------
    >>> slice_of("4x4", "TPU-V6E"), slice_of("2x4", "TPU-V5LITEPOD"), slice_of("2x2x2", "TPU-V4")
    ((4, 4), (1, 8), (2, 4))

    Raises
    ------
    ValueError
        If the topology is none of the generation's, or the generation is unknown.
    """
    generation = accelerator_type.upper().removeprefix("TPU-").replace("V5LITEPOD", "V5E")
    if generation not in FLAT | SOLID:
        known = ", ".join(f"TPU-{name}" for name in sorted(FLAT | SOLID))
        raise ValueError(f"accelerator_type={accelerator_type!r} is no kind of TPU; there are {known}")
    dimensions = 2 if generation in FLAT else 3
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", topology) or topology.count("x") != dimensions - 1:
        example = "4x4" if dimensions == 2 else "2x2x4"
        raise ValueError(f"topology={topology!r}: {accelerator_type} has {dimensions} dimensions, such as {example!r}")
    sizes = tuple(int(size) for size in topology.split("x"))
    chips = math.prod(sizes)
    if generation in {"V5E", "V6E"} and sizes in ONE_MACHINE:
        return 1, ONE_MACHINE[sizes]
    if chips % CHIPS_OF_A_MACHINE:
        raise ValueError(f"topology={topology!r} has {chips} chips, but machines have {CHIPS_OF_A_MACHINE} each")
    return chips // CHIPS_OF_A_MACHINE, CHIPS_OF_A_MACHINE
