"""The cluster's names: a DNS server that answers from Services and their ready addresses.

An answer is kept for 30 s, as CoreDNS keeps it where kubeadm before 1.32 set it up, and as
NodeLocal DNSCache does: who leaves is still named for so long, and who comes is not yet.
"""

from __future__ import annotations

import socket
import struct
import threading
import time

from tests.kubernetes.cluster.api import Api

DOMAIN = "cluster.local"
KEPT_S = 30
_PORT = 53
_A = 1
_NO_SUCH_NAME = 3
# An answer, authoritative, recursion asked for and to be had.
_FLAGS = 0x8580
_NAME_OF_THE_QUESTION = 0xC00C


class Names(threading.Thread):
    """Answers at ADDRESS:53 until `close`."""

    def __init__(self, api: Api, address: str) -> None:
        super().__init__(daemon=True, name="names")
        self._api = api
        self._kept_s = KEPT_S
        self._kept: dict[str, tuple[float, list[str] | None]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, _PORT))
        self._closed = threading.Event()

    def run(self) -> None:
        while True:
            question, caller = self._socket.recvfrom(4096)
            if self._closed.is_set():
                return
            self._socket.sendto(self._answer(question), caller)

    def hold(self) -> None:
        """Keep what was answered, until `let_go`."""
        self._kept = {name: (float("inf"), found) for name, (_, found) in self._kept.items()}

    def let_go(self) -> None:
        """As though all had been asked for just now: what changes from here on is seen last."""
        until = time.monotonic() + KEPT_S
        self._kept = {name: (until, found) for name, (_, found) in self._kept.items()}

    def keep(self, seconds: int) -> None:
        """From now on for so long; 0: each question is asked anew."""
        self._kept_s, self._kept = seconds, {}

    def close(self) -> None:
        self._closed.set()
        # It waits for a packet.
        self._socket.sendto(b"", self._socket.getsockname())
        self.join()
        self._socket.close()

    def _answer(self, question: bytes) -> bytes:
        name, end = _name(question)
        kind = struct.unpack_from("!H", question, end)[0]
        found = self._addresses(name)
        rows = found if found and kind == _A else []
        head = struct.pack(
            "!2s5H",
            question[:2],
            _FLAGS | (_NO_SUCH_NAME if found is None else 0),
            1,
            len(rows),
            0,
            0,
        )
        records = (
            struct.pack(
                "!3HIH4s", _NAME_OF_THE_QUESTION, _A, 1, self._kept_s, 4, socket.inet_aton(row)
            )
            for row in rows
        )
        return head + question[12 : end + 4] + b"".join(records)

    def _addresses(self, name: str) -> list[str] | None:
        """None where there is no such name, which is kept as well."""
        until, found = self._kept.get(name, (0.0, None))
        if time.monotonic() >= until:
            try:
                found = self._asked(name)
            except OSError:
                return found
            self._kept[name] = (time.monotonic() + self._kept_s, found)
        return found

    def _asked(self, name: str) -> list[str] | None:
        parts = name.removesuffix(f".svc.{DOMAIN}").split(".")
        if not name.endswith(f".svc.{DOMAIN}") or len(parts) != 2:
            return None
        service, namespace = parts
        base = f"/api/v1/namespaces/{namespace}"
        row = self._api.get(f"{base}/services/{service}")
        if row is None:
            return None
        if row["spec"].get("clusterIP") != "None":
            return [row["spec"]["clusterIP"]]
        subsets = (self._api.get(f"{base}/endpoints/{service}") or {}).get("subsets") or []
        ready = [one["ip"] for subset in subsets for one in subset.get("addresses") or []]
        return ready or None


def _name(packet: bytes) -> tuple[str, int]:
    """The name that is asked for, and where it ends."""
    labels, at = [], 12
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii"))
        at += length + 1
    return ".".join(labels).lower(), at + 1
