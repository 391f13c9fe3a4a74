"""The HTTP port: is the process alive, what is ready, and the metrics."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gateway.errors import UnavailableError
from gateway.settings import HttpSettings
from gateway.telemetry import metrics

Readiness = Callable[[], tuple[bool, dict[str, object]]]


class HealthServer:
    """Serves /livez, /readyz and /metrics from a thread of its own."""

    def __init__(self, settings: HttpSettings, readiness: Readiness, before_metrics: Callable[[], None]) -> None:
        try:
            self._server = ThreadingHTTPServer((settings.host, settings.port), _handler(readiness, before_metrics))
        except OSError as error:
            address = f"{settings.host}:{settings.port}"
            raise UnavailableError(f"cannot listen on {address} (http.host, http.port): {error.strerror}") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Give the port back without having started."""
        self._server.server_close()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(readiness: Readiness, before_metrics: Callable[[], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "deltaport"
        sys_version = ""
        timeout = 10  # a client that sends nothing does not keep a thread

        def do_GET(self) -> None:
            match self.path.split("?", 1)[0]:
                case "/livez":
                    self._send(200, "text/plain; charset=utf-8", b"alive\n")
                case "/readyz":
                    ready, details = readiness()
                    self._send(200 if ready else 503, "application/json", json.dumps(details).encode() + b"\n")
                case "/metrics":
                    before_metrics()
                    self._send(200, "text/plain; version=0.0.4; charset=utf-8", metrics.exposition())
                case _:
                    self._send(404, "text/plain; charset=utf-8", b"not found: /livez, /readyz and /metrics are here\n")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Probes and scrapes are not worth a line."""

    return Handler
