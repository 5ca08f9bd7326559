"""HttpServer: the HTTP server for metrics, with limits for the number of connections and the time of a request."""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 8
REQUEST_S = 10.0
"""Seconds for a request and its answer."""

_EXHAUSTED_S = 0.5


class _Request(WSGIRequestHandler):
    """A request handler that logs in one line, and writes nothing to stderr."""

    def log_message(self, format: str, *args: object) -> None:
        logger.debug(format, *args)

    def get_stderr(self) -> TextIO:
        return io.StringIO()


class HttpServer(ThreadingMixIn, WSGIServer):
    """A server of few connections at a time, each for a limited time, so that its clients cannot use up the process."""

    daemon_threads = True

    def __init__(self, host: str, port: int, app: WSGIApplication) -> None:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}  # open connections, and the time when each was accepted
        self._is_exhausted = False
        super().__init__((str(address[0]), int(address[1])), _Request)
        self.address = str(self.server_address[0]), int(self.server_address[1])
        self.set_app(app)

    def server_bind(self) -> None:
        """Do what HTTPServer does, without its DNS request for the name of this host."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            request = super().get_request()
        except OSError as error:
            if not self._is_exhausted:  # logged once; the server retries as long as a connection waits
                logger.warning("metrics: no connection can be accepted for now: %s", error)
            self._is_exhausted = True
            time.sleep(_EXHAUSTED_S)
            raise
        self._is_exhausted = False
        return request

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_taken = len(self._since) < CONNECTIONS_MAX
            if is_taken:
                self._since[request] = time.monotonic()
        if is_taken:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that are open for too long. socketserver calls this twice a second."""
        with self._lock, suppress(OSError):
            for request, since in self._since.items():
                if time.monotonic() - since > REQUEST_S:
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("metrics: a connection of %s was lost", client_address)
