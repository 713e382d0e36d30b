"""Ports that a test gets are nobody else's, from the look to the start of what listens there."""

from __future__ import annotations

import socket

from tests.free_ports import free_ports, is_free, own_ports
from tests.stack.conftest import free_port_base

# The first that Linux gives to clients' connections, where nobody sets another.
FIRST_OF_CLIENTS = 32_768


def test_two_processes_of_tests_have_no_port_in_common() -> None:
    ones, others = set(own_ports("gw0")), set(own_ports("gw1"))
    assert not ones & others
    assert len(ones) > 4000
    assert len(others) > 4000


def test_neither_a_stack_nor_a_clients_connection_gets_one() -> None:
    highest = max(own_ports("gw0") + own_ports("gw1"))
    base = free_port_base()
    assert highest < base < base + 5 < FIRST_OF_CLIENTS


def test_none_is_given_twice_in_a_row_nor_one_that_is_taken() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert not set(ports) & set(free_ports(3))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[0]))
        assert not is_free(ports[0])
