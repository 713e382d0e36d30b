"""A row of free ports goes around one that is taken."""

from __future__ import annotations

import socket

from transformer_serving.desk.local.free_ports import free_row
from transformer_serving.desk.local.record import LOOPBACK


def test_a_row_with_a_taken_port_is_passed_over() -> None:
    first = free_row(4)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, first + 2))
        again = free_row(4)
    assert again not in range(first - 1, first + 3)


def test_a_row_does_not_have_a_port_that_is_wanted_for_something_else() -> None:
    first = free_row(4)
    assert free_row(4, beside=first + 2) not in range(first - 1, first + 3)
