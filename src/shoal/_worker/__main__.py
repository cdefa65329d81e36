"""A worker in a fresh interpreter: ``python -m shoal._worker FD``, its boot message readable from the descriptor FD."""

from __future__ import annotations

import os
import sys

import msgspec

from shoal._core.messages import Boot
from shoal._worker.process import Birth, become, set_environment


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


if __name__ == "__main__":
    birth = msgspec.msgpack.decode(_read(int(sys.argv[1])), type=Birth)
    set_environment(birth.environment)
    become(birth)
    from shoal._worker.main import main

    main(msgspec.convert(birth.boot, Boot))
