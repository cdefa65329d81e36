"""Addresses of this machine that other machines reach."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from shoal._core.errors import ShoalError
from shoal._host.place import INTERFACE, address_of, towards


def own_address(others: Sequence[str] = ()) -> str:
    """Return an address of this machine: of the interface in ``$SHOAL_HOST_INTERFACE``, else on the way to others.

    Parameters
    ----------
    others : sequence of str
        Names or addresses of machines that are to reach this one; those that have no address are passed over.

    Raises
    ------
    ShoalError
        If there is no interface of the name in the variable, or it has no address.
    """
    if name := os.environ.get(INTERFACE):
        try:
            return address_of(name)
        except OSError as error:
            raise ShoalError(str(error)) from error
    here = socket.gethostname()
    for other in [*(o for o in others if o.partition(".")[0] != here.partition(".")[0]), "192.0.2.1", "2001:db8::1"]:
        try:
            return towards(f"tcp://{other}:9")
        except OSError:
            continue  # it has no address here, or nothing leads there
    return "127.0.0.1"
