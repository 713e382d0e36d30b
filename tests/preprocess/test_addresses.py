"""What is known of Tritons whose names can be looked up, or cannot."""

from __future__ import annotations

import socket

import pytest

from preprocess.triton.addresses import resolve

NOWHERE = "no-such-host.invalid:8000"


async def test_one_name_that_is_not_known_keeps_nobody_from_the_others() -> None:
    known: dict[str, set[str]] = {}
    assert await resolve(["127.0.0.1:1", NOWHERE, "localhost:2"], known) == (
        "127.0.0.1:1",
        "127.0.0.1:2",
    )


async def test_a_name_leads_where_it_led_until_it_is_known_again() -> None:
    known = {NOWHERE: {"127.0.0.9:8000"}}
    assert await resolve([NOWHERE, "127.0.0.1:1"], known) == ("127.0.0.1:1", "127.0.0.9:8000")
    assert await resolve(["127.0.0.1:1"], known) == ("127.0.0.1:1",)


async def test_where_nothing_is_known_the_reason_is_raised() -> None:
    with pytest.raises(socket.gaierror):
        await resolve([NOWHERE], {})
