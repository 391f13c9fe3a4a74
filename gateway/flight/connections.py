"""The Flight server's connections, as the kernel knows them.

pyarrow can neither end a call that waits for its client nor stop a server that
has such a call. Ending the connection does both: the call is then cancelled.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

Address = tuple[str, int]


def close_connection(port: int, peer: str) -> bool:
    """End the connection from this peer, as Flight names it, to this port; False where there is none."""
    wanted = _peer_address(peer)
    found = False
    for accepted in _accepted(port):
        if wanted is not None and _address(accepted.getpeername()) == wanted:
            with contextlib.suppress(OSError):  # the client was quicker
                accepted.shutdown(socket.SHUT_RDWR)
            found = True
    return found


def _accepted(port: int) -> Iterator[socket.socket]:
    """The connected sockets of this process on this local port, under descriptors of their own."""
    for entry in list(Path("/dev/fd").iterdir()):
        try:
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue
            own = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # closed since it was listed
            continue
        with own:
            try:
                is_accepted = own.getsockname()[1] == port and own.getpeername() is not None
            except (OSError, IndexError):  # it listens, or is no network socket
                continue
            if is_accepted:
                yield own


def _peer_address(peer: str) -> Address | None:
    scheme, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return _address((host.strip("[]"), int(port))) if scheme in ("ipv4", "ipv6") and port.isdigit() else None


def _address(reported: tuple[object, ...]) -> Address:
    """A server that listens for both kinds gets IPv4 addresses inside IPv6 ones; Flight names them plainly."""
    host = ipaddress.ip_address(str(reported[0]).partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return str(mapped or host), int(str(reported[1]))
