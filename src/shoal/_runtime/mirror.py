"""The files of a run on storage that has no appending: journal and metrics in segments, the others as a whole.

The driver writes to a directory on its own disk, as it would for any run; this copies what has been added. A segment is
an object named after the byte of the file at which it begins and the driver that wrote it: ``<offset>-<epoch>``. A
reader follows the offsets and takes, of two segments that begin at the same byte, the one of the later driver: what a
driver writes that was taken for dead changes nothing. At the end of a run the segments become one file.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shoal._worker.remote import Remote

SEGMENTED = {"journal.jsonl": "journal", "metrics.jsonl": "metrics"}
RECORDS = ("run.json", "experiment.json", "params.json", "result.json", "callbacks.json", "status.json")
GROWTH = (
    1.25  # a file that grows is copied again when it has grown by a quarter, so that the traffic stays in proportion
)
READERS = 16


class Mirror:
    """Copies a run's directory on this machine's disk to where the run is kept.

    Parameters
    ----------
    work : Path
        The directory on this machine's disk.
    remote : Remote
        Where the run is kept.
    epoch : int
        How many drivers this run has had, this one included.
    """

    def __init__(self, work: Path, remote: Remote, epoch: int):
        self.work = work
        self.remote = remote
        self._epoch = epoch
        self._sent = {name: _size(work / name) for name in SEGMENTED}
        self._copied: dict[str, tuple[int, int]] = {}

    def append(self, name: str) -> None:
        """Copy what was added to a file of lines since the last time."""
        if not (self.work / name).exists():
            return  # nothing was reported yet
        with open(self.work / name, "rb") as file:
            file.seek(self._sent[name])
            data = file.read()
        if data:
            segment = f"{self._sent[name]:015d}-{self._epoch:06d}"
            (self.remote / SEGMENTED[name] / segment).write(data)
            self._sent[name] += len(data)

    def refresh(self) -> None:
        """Copy rows of metrics that were added, and other files that are new or have grown much."""
        self.append("metrics.jsonl")
        for file in self._others():
            self._copy(file, growth=1.0 if file in RECORDS else GROWTH)  # records are written anew and do not grow

    def finish(self) -> None:
        """Copy everything, and make one file of the segments."""
        for file in self._others():
            self._copy(file, growth=1.0)
        for file in self._copied.keys() - set(self._others()):
            (self.remote / file).delete()
        for name, folder in SEGMENTED.items():
            self.append(name)
            if (self.work / name).exists():
                (self.remote / name).upload(self.work / name)
                (self.remote / folder).delete()

    def _others(self) -> list[str]:
        found = []
        for folder, subfolders, names in os.walk(self.work):
            subfolders[:] = [name for name in subfolders if name != "checkpoints"]
            for name in names:
                file = Path(folder, name).relative_to(self.work).as_posix()
                if file not in SEGMENTED and not name.startswith("."):
                    found.append(file)
        return sorted(found)

    def _copy(self, file: str, growth: float) -> None:
        state = (self.work / file).stat()
        size, changed = self._copied.get(file, (-1, -1))
        if (size, changed) == (state.st_size, state.st_mtime_ns):
            return
        if growth > 1.0 and size >= 0 and size <= state.st_size < size * growth:
            return
        (self.remote / file).upload(self.work / file)
        self._copied[file] = (state.st_size, state.st_mtime_ns)


def fetch_records(remote: Remote, work: Path, *, logs: bool = False) -> None:
    """Copy what a run has written down, other than its checkpoints, to this machine's disk.

    With ``logs``, the output of its workers too, for a driver that goes on with them.
    """
    work.mkdir(parents=True, exist_ok=True)
    there = set(remote.names())
    remote.get(there.intersection(RECORDS), work)
    for name, folder in SEGMENTED.items():
        (work / name).write_bytes(whole(remote, name, folder if folder in there else "", name in there))
    if logs and "logs" in there:
        remote.get([f"logs/{name}" for name in (remote / "logs").names()], work)


def whole(remote: Remote, name: str, folder: str, compacted: bool) -> bytes:
    """Return a file of lines that lies in segments, and in one file as far as that was made of them."""
    content = bytearray((remote / name).read() if compacted else b"")
    if not folder:
        return bytes(content)
    sizes = (remote / folder).sizes()
    chosen = chain(sizes, len(content))
    with ThreadPoolExecutor(READERS, "shoal-segments") as pool:
        for part in pool.map(lambda segment: (remote / folder / segment).read(), chosen):
            content += part
    return bytes(content)


def chain(sizes: dict[str, int], start: int) -> list[str]:
    """Return, of segments with these sizes, those that follow each other from byte ``start`` on."""
    best: dict[int, str] = {}
    for segment in sorted(sizes):  # of one offset, the later epoch comes last
        best[int(segment.partition("-")[0])] = segment
    chosen = []
    while start in best:
        chosen.append(best[start])
        start += sizes[best[start]]
        if not sizes[chosen[-1]]:
            break
    return chosen


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
