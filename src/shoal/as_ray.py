"""Run scripts that were written for Ray Train and Ray Tune without changing them.

``shoal run --as-ray script.py`` or ``python -m shoal.as_ray script.py`` runs one; :func:`install` at the top of a
program or a notebook does the same for the imports after it. ``docs/migrate-from-ray.md`` tells what differs.

Examples
--------
>>> from shoal import as_ray
>>> as_ray.install()  # doctest: +SKIP
>>> from ray import train  # doctest: +SKIP
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback

from shoal._worker.ray_names import install

__all__ = ["install"]


def main() -> None:
    """Run the script that is the first argument, as Python would, with Ray's names."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m shoal.as_ray SCRIPT [ARGUMENTS]")
    if not os.path.isfile(sys.argv[1]):
        sys.exit(f"there is no script {sys.argv[1]!r} in {os.getcwd()}")
    install()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        _show(error)
        sys.exit(1)


def _show(error: Exception) -> None:
    """Show an error as Python would, from the script on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != sys.argv[0]:
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames or error.__traceback__))


if __name__ == "__main__":
    main()
