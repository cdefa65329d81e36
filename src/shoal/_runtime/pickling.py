"""The training function as bytes; and where that fails, which variable is to blame."""

from __future__ import annotations

import dis
import functools
import io
import linecache
import os
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from shoal._core.errors import UnpicklableError
from shoal._worker.code import rebuilt
from shoal._worker.task import Task

DEPTH = 4


@dataclass(frozen=True)
class PickledTask:
    """What a worker needs to run the function. ``sources`` has the text of code that is in no file, by its name."""

    task: bytes
    sources: dict[str, str] = field(default_factory=dict)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle, but code keeps the name of its file, without which tracebacks show no lines."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file)
        self.filenames: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not types.CodeType:
            return super().reducer_override(obj)
        self.filenames.add(obj.co_filename)
        _, arguments = self.dispatch_table[types.CodeType](obj)
        return rebuilt, (arguments, obj.co_filename)


def pickled_task(task: Task) -> PickledTask:
    """Return what a worker needs to run the function.

    Raises
    ------
    UnpicklableError
        Naming the variable that cannot be sent, and where it is captured.
    """
    try:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(task)
    except Exception as error:
        name = getattr(task.function, "__qualname__", type(task.function).__name__)
        culprit = next(_culprits(task.function, f"the function {name!r}", DEPTH), None) or next(
            _culprits(task.config, "train_loop_config", DEPTH), None
        )
        what = f"{culprit} cannot be sent to the workers" if culprit else "the task cannot be sent to the workers"
        raise UnpicklableError(
            f"{what} ({type(error).__name__}: {error}). Create it inside the training function instead, or pass what "
            "it is made from (a path, an address, a size) in train_loop_config"
        ) from error
    unsaved = [name for name in pickler.filenames if not os.path.exists(name)]
    sources = {name: "".join(linecache.getlines(name)) for name in unsaved}
    return PickledTask(file.getvalue(), {name: source for name, source in sources.items() if source})


def pickled_config(config: dict[str, Any]) -> bytes:
    """Return a trial's configuration for its workers.

    Raises
    ------
    UnpicklableError
        Naming the parameter that cannot be sent.
    """
    try:
        pickled: bytes = cloudpickle.dumps(config)
    except Exception as error:
        culprit = next(_culprits(config, "the configuration", DEPTH), "the configuration")
        raise UnpicklableError(
            f"{culprit} cannot be sent to the workers ({type(error).__name__}: {error}). Put what it is made from into "
            "the search space (a name, a path, a size), and make it inside the function"
        ) from error
    return pickled


def _culprits(value: Any, path: str, depth: int) -> Iterator[str]:
    """Yield descriptions of the innermost parts of a value that cannot be pickled."""
    if _picklable(value):
        return
    found = False
    if depth:
        for part, where in _parts(value, path):
            for culprit in _culprits(part, where, depth - 1):
                found = True
                yield culprit
    if not found:
        yield f"{path}, a {type(value).__module__}.{type(value).__qualname__},"


def _parts(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(value, types.FunctionType):
        yield from _captured(value, path)
    elif isinstance(value, types.MethodType):
        yield value.__self__, f"the object of {path}"
        yield value.__func__, path
    elif isinstance(value, functools.partial):
        yield value.func, path
        yield value.args, f"the arguments of {path}"
        yield value.keywords, f"the arguments of {path}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield inner, f"{path}[{key!r}]"
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, inner in enumerate(value):
            yield inner, f"{path}[{index}]"
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for name, inner in vars(value).items():
            yield inner, f"attribute {name!r} of {path}"


def _captured(function: types.FunctionType, path: str) -> Iterator[tuple[Any, str]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield cell.cell_contents, f"variable {name!r}, captured from outside by {path}"
        except ValueError:
            continue  # not assigned yet
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__ and not isinstance(function.__globals__[name], types.ModuleType):
            yield function.__globals__[name], f"global variable {name!r}, used by {path}"
    for index, default in enumerate(function.__defaults__ or ()):
        yield default, f"default argument {index} of {path}"


def _global_names(code: types.CodeType) -> set[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in {"LOAD_GLOBAL", "LOAD_NAME"}}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _picklable(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
