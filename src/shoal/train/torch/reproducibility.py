"""The same results from the same seed."""

from __future__ import annotations

import os
import random

import torch


def enable_reproducibility(seed: int = 0) -> None:
    """Seed every generator of this process, and choose deterministic algorithms.

    Slower, and an operation that has no deterministic form raises. Pass ``generator`` and ``worker_init_fn`` to data
    loaders whose own workers draw random numbers.

    Parameters
    ----------
    seed : int
        The seed of Python's, NumPy's and torch's generators.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy as np
    except ImportError:
        pass
    else:
        np.random.seed(seed % 2**32)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
