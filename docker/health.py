"""A container health check: `health.py ADDRESS [FILE]` ends with 0 when all is well, else with 1.

The address must answer 200. The file, where one is named, must have been touched of late by the
process that has no address of its own. Where the container speaks TLS, so does this, and does not
look at the certificate: it asks its own container. Where callers need one it shows the one that the
environment names.

Tested by tests/test_health_check.py.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
import urllib.request
from pathlib import Path

TLS_CERT = "TRANSFORMER_SERVING_TLS_CERT"
# Of the check alone; compose names them where callers need a certificate.
HEALTH_CERT = "TRANSFORMER_SERVING_HEALTH_CERT"
HEALTH_KEY = "TRANSFORMER_SERVING_HEALTH_KEY"
_TIMEOUT_S = 4.0
_FRESH_S = 60.0


def main() -> int:
    try:
        well = asked(sys.argv[1], os.environ.get(TLS_CERT))
        for name in sys.argv[2:]:
            touched = Path(name).stat().st_mtime
            age = time.time() - touched
            if age > _FRESH_S:
                well = False
                # container.py leaves one of the time 0.
                said = f"was last touched {age:.0f} s ago" if touched else "was never touched"
                print(f"{name} {said}")  # noqa: T201 - shown by Docker
    except OSError as error:
        print(error)  # noqa: T201 - docker inspect shows it
        return 1
    return 0 if well else 1


def asked(address: str, tls: str | None) -> bool:
    """Whether it answers 200. Raises OSError."""
    # Never a proxy of the environment: it would ask its own 127.0.0.1.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls:
        address = address.replace("http:", "https:", 1)
        handlers.append(urllib.request.HTTPSHandler(context=unverified()))
    opener = urllib.request.build_opener(*handlers)
    with opener.open(address, timeout=_TIMEOUT_S) as answer:
        return bool(answer.status == 200)


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    shown, key = os.environ.get(HEALTH_CERT), os.environ.get(HEALTH_KEY)
    if shown:
        try:
            context.load_cert_chain(shown, key)
        except OSError as error:
            raise OSError(f"{shown}, {key}: {error.strerror or error}") from error
    return context


if __name__ == "__main__":
    sys.exit(main())
