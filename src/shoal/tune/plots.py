"""Pictures of a search, as Optuna draws them: files through matplotlib, pages for a browser through plotly."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = {
    "history": "plot_optimization_history",
    "parallel": "plot_parallel_coordinate",
    "importance": "plot_param_importances",
    "curves": "plot_intermediate_values",
}
PICTURES = (".png", ".svg", ".pdf")
SIZE = (9.0, 5.5)  # inches
NAMED = 12  # curves; where there are more, a legend would hide them


def plot(study: Any, kind: str, path: str | os.PathLike[str]) -> Path:
    """Draw a study into a file and return its path.

    Parameters
    ----------
    study : optuna.Study
        As :meth:`ResultGrid.to_optuna` returns it.
    kind : str
        ``"history"`` (value by trial, and the best so far), ``"parallel"`` (coordinates), ``"importance"`` (of
        parameters) or ``"curves"`` (value by report, a line a trial).
    path : str or path
        Where; ``.png``, ``.svg`` and ``.pdf`` are drawn by matplotlib, ``.html`` by plotly.

    Raises
    ------
    ValueError
        If there is no such kind, the name of the file does not say what to draw, or there is nothing to show.
    ImportError
        If what draws it is not installed.
    """
    path = Path(path)
    if kind not in KINDS:
        raise ValueError(f"plot({kind!r}): choose one of {', '.join(map(repr, KINDS))}")
    if path.suffix not in (*PICTURES, ".html"):
        raise ValueError(f"{str(path)!r} is to be drawn, but as what? End its name in {', '.join(PICTURES)} or .html")
    complete = study.get_trials(deepcopy=False, states=_complete())
    if kind == "importance" and len(complete) < 2:
        raise ValueError(
            f"the importance of parameters shows from two trials with a result on; there are {len(complete)}"
        )
    if not complete:
        raise ValueError("there is nothing to draw: no trial has a result")
    library = "plotly" if path.suffix == ".html" else "matplotlib"
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise ImportError(f"a {path.suffix} file is drawn by {library}: pip install 'shoal[tune]'") from error
    metric = (study.metric_names or ["value"])[0]
    more: dict[str, Any] = {} if kind == "curves" else {"target_name": metric}
    if kind == "importance":
        more["evaluator"] = evaluator()
    if library == "plotly":
        figure = _of(kind, "optuna.visualization")(study, **more)
        if kind == "curves":
            figure.update_layout(title="Learning curves", xaxis_title="report", yaxis_title=metric)
        figure.write_html(path, include_plotlyjs=True)
    else:
        _draw(kind, study, path, metric, more)
    return path


def _draw(kind: str, study: Any, path: Path, metric: str, more: dict[str, Any]) -> None:
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context({"figure.figsize": SIZE, "figure.constrained_layout.use": True}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is experimental, and what else it thinks of itself
            axes = _of(kind, "optuna.visualization.matplotlib")(study, **more)
        if kind == "curves":
            axes.set(title="Learning curves", xlabel="report", ylabel=metric)
            if len(axes.get_lines()) > NAMED:
                axes.get_legend().remove()
        figure = axes.get_figure()
        figure.savefig(path, dpi=150)
        pyplot.close(figure)


def _of(kind: str, module: str) -> Callable[..., Any]:
    drawer: Callable[..., Any] = getattr(importlib.import_module(module), KINDS[kind])
    return drawer


def _complete() -> Any:
    from optuna.trial import TrialState

    return (TrialState.COMPLETE,)


def evaluator() -> Any:
    """Return what measures importance: Hutter et al., *An Efficient Approach for Assessing HP Importance*, 2014."""
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

    try:
        return FanovaImportanceEvaluator(seed=0)
    except ImportError:  # without scikit-learn: Watanabe et al., *PED-ANOVA*, 2023
        return PedAnovaImportanceEvaluator()
