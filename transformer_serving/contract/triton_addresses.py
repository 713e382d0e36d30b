"""Triton's address as a setting has it: one or several, each a host's or a socket's.

Tested by tests/preprocess/test_settings.py.
"""

from __future__ import annotations


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
    if not host or not port.isdigit():
        raise ValueError("an address of Triton must be host:port or unix:/path")
    return host.strip("[]"), int(port)
