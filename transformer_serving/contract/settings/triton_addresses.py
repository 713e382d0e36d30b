"""Triton's address as a setting has it: one or several, each a host's or a socket's.

Tested by tests/preprocess/test_settings.py.
"""

from __future__ import annotations

_LAST_PORT = 65_535


def is_unix(address: str) -> bool:
    return address.startswith("unix:")


def split_addresses(text: str) -> tuple[str, ...]:
    """What stands between commas, without what http:// adds; whatever it is."""
    return tuple(part.strip().removeprefix("http://").rstrip("/") for part in text.split(","))


def read_addresses(text: str) -> tuple[str, ...]:
    """`host:port`, `unix:/path`, or several with commas between. Raises ValueError."""
    found = split_addresses(text)
    for address in found:
        if not is_unix(address):
            parts_of(address)
    return found


def parts_of(address: str) -> tuple[str, int]:
    """Host and port. Raises ValueError."""
    host, _, port = address.rpartition(":")
    is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) <= _LAST_PORT
    if not host or not is_port:
        raise ValueError(
            f"an address of Triton must be host:port, the port from 1 to {_LAST_PORT}, or "
            f"unix:/path; got '{address[:64]}'"
        )
    return host.strip("[]"), int(port)
