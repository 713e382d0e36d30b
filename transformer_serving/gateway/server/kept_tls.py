"""The files of TLS as they were when they were last found good, for every worker that starts later.

Tested by tests/gateway/test_tls.py.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from transformer_serving.gateway.access import Access
from transformer_serving.gateway.server.tls import Tls
from transformer_serving.gateway.watched_files import WatchedFiles


class KeptTls:
    """`copy` of the files of `source`, for this process and those that are handed its open files'
    `numbers`. `watched` says whether they changed since just before they were read.

    A renewal writes one file after the other: a worker that is replaced meanwhile would read a
    certificate and a key that do not belong together. The copies lie in memory and have no name: a
    key that is only mounted, as from a Secret, comes to no disk by them, and they end with the last
    process that holds them.
    """

    def __init__(self, source: Tls) -> None:
        """Raises ValueError naming the file that is missing or wrong."""
        self.watched = WatchedFiles(source.files())
        source.check()
        self.source = source
        named = f"{source.cert} and {source.key}"
        self.numbers: list[int] = []
        weakref.finalize(self, _close, self.numbers)
        try:
            for path in source.files():
                self.numbers.append(_copied(path))
        except OSError as error:
            raise ValueError(f"{named} cannot be copied: {error.strerror or error}") from None
        self.copy = Tls(*(Path(f"/proc/self/fd/{number}") for number in self.numbers))
        try:
            self.copy.check()
        except ValueError:
            raise ValueError(f"{named} changed while they were read") from None


def kept_tls(access: Access) -> KeptTls | None:
    """None where no certificate is named. Raises ValueError as KeptTls does."""
    if access.tls_cert is None or access.tls_key is None:
        return None
    return KeptTls(Tls(access.tls_cert, access.tls_key, access.tls_client_ca))


def _copied(path: Path) -> int:
    """The open file's number."""
    raw = path.read_bytes()
    with os.fdopen(os.memfd_create("tls"), "wb") as file:
        file.write(raw)
        file.flush()
        return os.dup(file.fileno())


def _close(numbers: list[int]) -> None:
    for number in numbers:
        os.close(number)
