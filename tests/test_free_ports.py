"""Ports that a test gets are nobody else's, from the look to the start of what listens there."""

from __future__ import annotations

import socket

import pytest

from tests.free_ports import (
    FIRST,
    LAST,
    free_port_base,
    free_ports,
    is_free,
    own_bases,
    own_ports,
    share,
)

# The first that Linux gives to clients' connections, where nobody sets another.
FIRST_OF_CLIENTS = 32_768


def test_processes_of_tests_have_no_port_in_common() -> None:
    shares = [set(own_ports(process, 3)) for process in range(3)]
    assert len(set.union(*shares)) == sum(map(len, shares)) == LAST + 1 - FIRST
    bases = [base for process in range(3) for base in own_bases(process, 3)]
    ports = [port for base in bases for port in range(base, base + 6)]
    assert len(ports) == len(set(ports)) > 10_000


def test_a_process_knows_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw2")
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    assert share() == (2, 3)
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT")
    assert share() == (0, 1)


def test_neither_a_stack_nor_a_clients_connection_gets_one() -> None:
    base = free_port_base()
    assert LAST < base < base + 5 < FIRST_OF_CLIENTS


def test_none_is_given_twice_in_a_row_nor_one_that_is_taken() -> None:
    ports = free_ports(3)
    assert len(set(ports)) == 3
    assert not set(ports) & set(free_ports(3))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[0]))
        assert not is_free(ports[0])
