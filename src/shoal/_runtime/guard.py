"""Who may connect with a supervisor over a network: whoever has the key of its run."""

from __future__ import annotations

import secrets

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Guard:
    """Lets in those that show the one key, and notes who was refused.

    Parameters
    ----------
    context, socket
        Of the supervisor; the socket is not bound yet.
    public_key : bytes
        That of the run's hosts and workers.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], public_key: bytes):
        self._socket, self._key = socket, public_key
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="shoal", credentials_provider=self)
        socket.zap_domain = b"shoal"
        self.monitor = socket.get_monitor_socket(REFUSED)
        self.refused = 0

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a peer with this key may connect; called by the authenticator."""
        return secrets.compare_digest(key, self._key)

    def look(self) -> bool:
        """Take note of who was refused since the last call; true for the first one."""
        before = self.refused
        while self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            self.refused += 1
        return before == 0 and self.refused > 0

    def close(self) -> None:
        """Stop."""
        self._socket.disable_monitor()
        self.monitor.close(linger=0)
        self._authenticator.stop()
