"""Sending a load where the endpoint may be gone: the failure says where it is, and what to do.

Tested by tests/bench/test_contact.py.
"""

from __future__ import annotations

import errno
import json
import resource
import ssl
from collections.abc import Sequence

from transformer_serving.contract.error_line import MOST, one_line
from transformer_serving.desk import http
from transformer_serving.desk.bench import load
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure

_TIMEOUT_S = 60.0
_MOST_BYTES = 1 << 16
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def run(
    address: Address, payloads: Sequence[load.Payload], kind: load.Closed | load.Open
) -> load.Run:
    """Send one load. Raises Failure when nothing listens, or this process may open no more."""
    try:
        return load.run(address, payloads, kind)
    except OSError as error:
        raise no_contact(address, error) from None


def no_contact(address: Address, error: OSError) -> Failure:
    """What the operator is told of an error in connecting."""
    where, reason = address.place, error.strerror or error
    if error.errno in _NO_DESCRIPTORS:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return Failure(
            f"no more connections to {where}: {reason}; ask with fewer clients, or allow more "
            f"than {most} files with 'ulimit -n'"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        said = http.distrust(error, "name the file of its authority in SSL_CERT_FILE")
        return Failure(f"the certificate of {where} is not trusted here: {said}")
    # Whose it is is not known: a stack of another folder, or another machine's.
    return Failure(
        f"nothing answers at {where}: {reason}; of a stack on this machine see "
        f"'{command_line('status')}', with the --state that it was started with"
    )


def said_of(address: Address, payload: load.Payload) -> str:
    """What the answer to a request that is refused says, in one line; empty where it says nothing
    or there is none."""
    headers = {"Content-Type": payload.content_type, **address.headers}
    try:
        answer = http.ask(
            address.url, payload.body, headers, timeout_s=_TIMEOUT_S, most=_MOST_BYTES
        )
        found = json.loads(answer.body)
    # It may be a page, and JSON nested without end is a RecursionError.
    except (http.NoAnswer, ValueError, RecursionError):
        return ""
    # Each protocol has its own form of errors.
    for name in ("error", "message"):
        found = found.get(name, found) if isinstance(found, dict) else found
    return one_line(found, MOST) if isinstance(found, str) else ""
