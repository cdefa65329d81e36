"""A framework of your own is one class: here plain sockets, with which two workers sum their gradients in a ring.

``start`` runs in each worker before the training function. Rank 0 needs no fixed port: each rank binds one that the
system gives it, and ``gather`` tells all ranks all addresses.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from shoal import train
from shoal.abc import Framework, WorkerSide
from shoal.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


class Ring(Framework):
    """Each worker sends to the next one, and receives from the one before it."""

    preload = ("numpy",)  # imported once for all workers
    here: ClassVar[Ring]  # what the training function uses

    def start(self, worker: WorkerSide) -> None:
        self.rank, self.size = worker.ranks.world_rank, worker.ranks.world_size
        listener = socket.create_server((worker.address, 0))
        addresses = worker.gather("ring", json.dumps(listener.getsockname()[:2]).encode())
        self._next = socket.create_connection(tuple(json.loads(addresses[(self.rank + 1) % self.size])))
        self._before = listener.accept()[0]
        listener.close()
        Ring.here = self

    def stop(self) -> None:
        self._next.close()
        self._before.close()

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of an array over all workers: each part goes round once."""
        total, passed_on = values.copy(), values
        for _ in range(self.size - 1):
            sender = threading.Thread(target=self._next.sendall, args=(passed_on.tobytes(),))
            sender.start()
            passed_on = np.frombuffer(self._receive(values.nbytes), values.dtype).reshape(values.shape)
            sender.join()
            total += passed_on
        return total / self.size

    def _receive(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            part = self._before.recv(count - len(received))
            if not part:
                raise ConnectionError(f"the worker before rank {self.rank} is gone")
            received += part
        return bytes(received)


def train_func(config: dict) -> None:
    ring = Ring.here
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(images / 16.0, labels, random_state=0, stratify=labels)
    weights, begin = np.zeros((64, 10)), 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            saved = np.load(Path(directory, "weights.npz"))
        weights, begin = saved["weights"], int(saved["epoch"]) + 1
    mine, targets = x_train[ring.rank :: ring.size], np.eye(10)[y_train[ring.rank :: ring.size]]
    for epoch in range(begin, config["epochs"]):
        for _ in range(10):
            scores = np.exp(mine @ weights)
            gradient = mine.T @ (scores / scores.sum(1, keepdims=True) - targets) / len(mine)
            weights -= 2.0 * ring.mean(gradient)
        accuracy = float(np.mean((x_test @ weights).argmax(1) == y_test))
        with train.checkpoint_dir() as directory:
            np.savez(directory / "weights.npz", weights=weights, epoch=epoch)
            checkpoint = Checkpoint.from_directory(directory)
            train.report({"epoch": epoch, "test_accuracy": accuracy}, checkpoint=checkpoint)


def make_trainer(function=train_func, epochs: int = 20, **run) -> DataParallelTrainer:
    return DataParallelTrainer(
        function,
        train_loop_config={"epochs": epochs},
        framework=Ring(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    accuracy = make_trainer().fit().metrics["test_accuracy"]
    print(f"test accuracy: {accuracy:.3f}")
    sys.exit(accuracy < 0.92)
