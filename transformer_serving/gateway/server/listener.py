"""The listening socket, made once and shared by all workers.

Tested by tests/gateway/test_workers.py and tests/gateway/test_slow_readers.py.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from dataclasses import dataclass
from pathlib import Path

# The workers of a supervisor that was killed notice it and leave, and one that ends closes its
# listener when its workers have closed theirs: both take a moment.
_PATIENCE_S = 10.0
_PAUSE_S = 0.1
# In which a caller is to take some of what is on its way to him: as long as the stack's HAProxy
# gives (its `timeout client`), so that who reads in pauses meets the same with it and without.
# Linux hears of it in steps, so who takes 10 kB a second stays for as long as that lasts. So does
# who has all that was sent: an idle connection, a stream in a pause.
UNREAD_SECONDS = 75.0


def listen(
    host: str, port: int, backlog: int, *, unread_seconds: float = UNREAD_SECONDS
) -> socket.socket:
    """On a TCP port, 0 for any. Raises OSError.

    A connection of which nothing is taken for `unread_seconds`, though something waits, has ended.
    """
    family, kind, protocol, address = _address(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # An accepted connection inherits both.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Granian takes an answer whole and waits without end for who does not read it.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(1000 * unread_seconds)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        _bind(listener, address)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def hold(host: str, port: int) -> socket.socket:
    """Keep a TCP port for workers that listen on it each for itself. Raises OSError.

    Who holds it takes no connection.
    """
    family, kind, protocol, address = _address(host, port)
    # With SO_REUSEPORT a port would be shared with another program's workers without a word.
    with socket.socket(family, kind, protocol) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(alone, address)
    holder = socket.socket(family, kind, protocol)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bind(holder, address)
    except OSError:
        holder.close()
        raise
    return holder


@dataclass(frozen=True)
class BoundPath:
    """A unix socket's path as it was bound: another gateway may have taken it over since."""

    path: Path
    device: int
    # A file system gives the number of a removed one to the next.
    inode: int
    modified_ns: int

    @staticmethod
    def of(path: Path) -> BoundPath:
        status = path.lstat()
        return BoundPath(path, status.st_dev, status.st_ino, status.st_mtime_ns)

    def remove(self) -> None:
        """Unless it is another's by now."""
        with contextlib.suppress(FileNotFoundError):
            if BoundPath.of(self.path) == self:
                self.path.unlink()


def listen_on_socket(path: Path, backlog: int) -> socket.socket:
    """On a unix socket, in the place of one that nobody listens on any more. Raises OSError.

    Who still listens there is waited for as for a port's holder.
    """
    end = time.monotonic() + _PATIENCE_S
    while _answers(path) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    with contextlib.suppress(FileNotFoundError):
        if path.is_socket() and not _answers(path):
            path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def _address(host: str, port: int) -> tuple[int, int, int, object]:
    """What to make a socket of, and where it is bound."""
    (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return family, kind, protocol, address


def _bind(listener: socket.socket, address: object) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            listener.bind(address)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        # Where its queue is full, `connect` would wait for as long as it is.
        asker.settimeout(_PAUSE_S)
        try:
            asker.connect(str(path))
        except (TimeoutError, BlockingIOError):
            return True
        except OSError:
            return False
        return True
