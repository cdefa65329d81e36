"""A real S3 server in a process of its own on loopback, and a proxy in front of it that breaks requests on purpose."""

from __future__ import annotations

import http.client
import socket
import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSED_ON = ("content-type", "content-length", "etag", "last-modified", "content-range", "accept-ranges", "location")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class S3Server:
    """moto's S3 server, which keeps objects in its memory. ``signal`` goes to its process."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Proxy:
    """Passes requests on to a server. What it does to some of them is set by the test.

    Attributes
    ----------
    break_every : int
        Every how many requests one is broken: answered with 503, with 500, or with a closed connection, in turn.
    stall_uploads_over : int
        The size in bytes from which an upload is read to its middle and never answered; 0 for none.
    """

    def __init__(self, port: int) -> None:
        self.break_every = 0
        self.stall_uploads_over = 0
        self.requests = 0
        self.broken = 0
        self.stalled = threading.Event()
        self.closing = threading.Event()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self) -> None:
                proxy.serve(self, port)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = serve

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def serve(self, handler: BaseHTTPRequestHandler, port: int) -> None:
        size = int(handler.headers.get("Content-Length") or 0)
        if 0 < self.stall_uploads_over < size and handler.command in {"PUT", "POST"}:
            handler.rfile.read(size // 2)
            self.stalled.set()
            self.closing.wait()
            handler.close_connection = True
            return
        body = handler.rfile.read(size)
        with self._lock:
            self.requests += 1
            breaks = self.break_every and self.requests % self.break_every == 0
            self.broken += bool(breaks)
        if breaks:
            self._break(handler)
            return
        upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        upstream.request(handler.command, handler.path, body, dict(handler.headers.items()))
        answer = upstream.getresponse()
        content = answer.read()
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() in PASSED_ON and not (name.lower() == "content-length" and handler.command != "HEAD"):
                handler.send_header(name, value)
        if handler.command != "HEAD":
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)
        upstream.close()

    def _break(self, handler: BaseHTTPRequestHandler) -> None:
        kind = self.broken % 3
        if kind == 0:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        content = b"<Error><Code>InternalError</Code><Message>broken on purpose</Message></Error>"
        handler.send_response(503 if kind == 1 else 500)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)

    def stop(self) -> None:
        self.closing.set()
        self._server.shutdown()
        socketserver.TCPServer.server_close(self._server)
