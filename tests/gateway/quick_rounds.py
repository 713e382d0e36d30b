"""The gateway with a round of golden requests every second: this module runs in its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformer_serving.gateway import golden_rounds
from transformer_serving.gateway.server import command, worker, worker_process

if TYPE_CHECKING:
    from tests.gateway.conftest import Server

GATEWAY = ["-m", "transformer_serving.gateway"]
OURS = ["-c", f"from {__name__} import main; main()"]


def with_quick_rounds(gateway: Server) -> Server:
    """A gateway that is not started yet."""
    assert gateway.command[1:3] == GATEWAY
    gateway.command[1:3] = OURS
    return gateway


def main() -> None:
    worker_process.MODULE = __name__
    command.main()


if __name__ == "__main__":
    golden_rounds.EVERY_S = 1.0
    worker.main()
