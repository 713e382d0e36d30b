"""Where Triton is: one address or several, each an IP, a name of one host or many, or a socket.

Tested by tests/preprocess/test_named_tritons.py.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

from transformer_serving.contract.settings.triton_addresses import is_unix, parts_of


def is_fixed(address: str) -> bool:
    """Whether the address says itself where it leads, without a name to look up."""
    if is_unix(address):
        return True
    try:
        ipaddress.ip_address(parts_of(address)[0])
    except ValueError:
        return False
    return True


async def resolve(addresses: Sequence[str], known: dict[str, set[str]]) -> tuple[str, ...]:
    """Every server behind the addresses, each once, names looked up.

    A name that cannot be looked up now leads to those that are `known` of it. Raises OSError or
    UnicodeError where that leaves none.
    """
    failed: OSError | UnicodeError | None = None
    for address in addresses:
        try:
            known[address] = {address} if is_fixed(address) else await _look_up(address)
        except (OSError, UnicodeError) as error:
            failed = error
    found = set().union(*(known.get(address, ()) for address in addresses))
    if failed is not None and not found:
        raise failed
    return tuple(sorted(found))


async def _look_up(address: str) -> set[str]:
    """IPv4 where the name has it: the IPv6 address beside it is the same server."""
    host, port = parts_of(address)
    rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    four = {f"{row[4][0]}:{port}" for row in rows if row[0] == socket.AF_INET}
    return four or {f"[{row[4][0]}]:{port}" for row in rows if row[0] == socket.AF_INET6}
