"""Addresses that only this machine reaches.

Tested by tests/gateway/test_access.py.
"""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it; of names only localhost is known to be so.

    An IPv6 address may stand in brackets, as before a port.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
