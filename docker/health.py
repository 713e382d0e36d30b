"""A container's health check: ends with 0 when the address answers 200, else with 1."""

from __future__ import annotations

import sys
import urllib.request

_TIMEOUT_S = 4.0


def main() -> int:
    try:
        with urllib.request.urlopen(sys.argv[1], timeout=_TIMEOUT_S) as answer:
            return 0 if answer.status == 200 else 1
    except OSError as error:
        print(error)  # noqa: T201 - docker inspect shows it
        return 1


if __name__ == "__main__":
    sys.exit(main())
