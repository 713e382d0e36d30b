"""The images that the tests of containers begin with, made ahead: `python -m tests.compose.images`.

The tests make what is missing themselves. Most of it is waiting for packages, so that it costs less
beside other tests than before these.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.compose.conftest import build_images
from tests.compose.machine import docker_engine


def main() -> None:
    with docker_engine(), tempfile.TemporaryDirectory() as folder:
        build_images(Path(folder))


if __name__ == "__main__":
    main()
