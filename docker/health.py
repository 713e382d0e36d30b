"""A container health check: `health.py ADDRESS [FILE]` ends with 0 when all is well, else with 1.

The address must answer 200. The file, where one is named, must have been touched of late by the
process that has no address of its own.
"""

from __future__ import annotations

import sys
import time
import urllib.request
from pathlib import Path

_TIMEOUT_S = 4.0
_FRESH_S = 60.0


def main() -> int:
    try:
        with urllib.request.urlopen(sys.argv[1], timeout=_TIMEOUT_S) as answer:
            well = answer.status == 200
        for name in sys.argv[2:]:
            age = time.time() - Path(name).stat().st_mtime
            if age > _FRESH_S:
                well = False
                print(f"{name} was last touched {age:.0f} s ago")  # noqa: T201 - shown by Docker
    except OSError as error:
        print(error)  # noqa: T201 - docker inspect shows it
        return 1
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
