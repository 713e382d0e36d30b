"""The images that the tests of containers begin with, made ahead: `python -m tests.compose.images`.

The tests make what is missing themselves. Most of it is waiting for packages, so that it costs less
beside other tests than before these.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from tests.compose.conftest import build_images
from tests.compose.machine import docker_engine


def main() -> None:
    # A daemon that stayed would be taken for the machine's own by the next who needs one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with docker_engine(), tempfile.TemporaryDirectory() as folder:
        build_images(Path(folder))


if __name__ == "__main__":
    main()
