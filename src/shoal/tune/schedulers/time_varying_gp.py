"""A Gaussian process over parameters whose effect changes with time, and its upper confidence bound."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Hyperparameter, Kernel, NormalizedKernelMixin, WhiteKernel

Array = NDArray[np.float64]
CANDIDATES = 1000
REFINEMENTS = 3  # rounds of candidates around the best one so far, each nearer to it
NEWEST = 300  # observations; the time to fit grows with their cube, and old ones tell little


class TimeVarying(NormalizedKernelMixin, Kernel):  # type: ignore[misc]
    """``exp(-|x - x'|² / 2 l²) · (1 - ε)^(|t - t'| / 2)``: near in parameters, and in time.

    The first column of its inputs is the time, the others are what the function depends on. Bogunovic, Scarlett,
    Cevher, *Time-Varying Gaussian Process Bandit Optimization*, 2016.
    """

    def __init__(self, length_scale: float = 0.3, forgetting: float = 0.05):
        self.length_scale = length_scale
        self.forgetting = forgetting

    @property
    def hyperparameter_forgetting(self) -> Hyperparameter:
        """The share that is forgotten in a unit of time, ``ε``."""
        return Hyperparameter("forgetting", "numeric", (1e-5, 0.9))

    @property
    def hyperparameter_length_scale(self) -> Hyperparameter:
        """How far parameters are alike, ``l``."""
        return Hyperparameter("length_scale", "numeric", (0.05, 5.0))

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Array | tuple[Array, Array]:
        """Return the covariances, and their gradients by the logarithms of the two hyperparameters."""
        other = X if Y is None else Y
        apart = np.abs(X[:, None, 0] - other[None, :, 0]) / 2
        squares = ((X[:, None, 1:] - other[None, :, 1:]) ** 2).sum(axis=2) / self.length_scale**2
        values: Array = np.exp(-squares / 2) * (1 - self.forgetting) ** apart
        if not eval_gradient:
            return values
        by_forgetting = -values * apart * self.forgetting / (1 - self.forgetting)
        return values, np.stack([by_forgetting, values * squares], axis=2)

    def is_stationary(self) -> bool:
        """Whether only differences matter."""
        return True


def most_promising(observed: Array, changes: Array, pending: Array, context: Array, seed: int) -> Array:
    """Return the parameters whose upper confidence bound is the highest.

    Parameters
    ----------
    observed : array of shape (n, 1 + c + d)
        Of each observation the time, ``c`` columns of context and ``d`` parameters, all of them from 0 to 1 but the
        time, which counts intervals.
    changes : array of shape (n,)
        By how much the metric got better.
    pending : array of shape (m, 1 + c + d)
        What is being tried now: it is not tried again, since what it brings is almost known.
    context : array of shape (1 + c,)
        The time and the context for which parameters are sought.
    seed : int
        Of the candidates.

    Returns
    -------
    array of shape (d,)
    """
    observed, changes = observed[-NEWEST:], changes[-NEWEST:]
    rng = np.random.default_rng(seed)
    spread = changes.std() or 1.0
    targets = (changes - changes.mean()) / spread
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * TimeVarying() + WhiteKernel(0.1, (1e-4, 10.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a bound of a hyperparameter is as good as any value
        mean = GaussianProcessRegressor(kernel, random_state=seed).fit(observed, targets)
        uncertain = mean
        if len(pending):
            everything = np.concatenate([observed, pending])
            believed = np.concatenate([targets, mean.predict(pending)])
            uncertain = GaussianProcessRegressor(mean.kernel_, optimizer=None).fit(everything, believed)
    width = np.sqrt(0.2 + np.log(1 + 0.4 * len(observed)))  # the paper's schedule of exploration

    def bound(parameters: Array) -> Array:
        inputs = np.concatenate([np.tile(context, (len(parameters), 1)), parameters], axis=1)
        best: Array = mean.predict(inputs) + width * uncertain.predict(inputs, return_std=True)[1]
        return best

    count = observed.shape[1] - len(context)
    candidates = rng.random((CANDIDATES, count))
    for near in range(1, REFINEMENTS + 1):
        best = candidates[np.argmax(bound(candidates))]
        around = np.clip(best + rng.normal(0, 0.1**near, (CANDIDATES // 4, count)), 0, 1)
        candidates = np.concatenate([best[None], around])
    chosen: Array = candidates[np.argmax(bound(candidates))]
    return chosen
