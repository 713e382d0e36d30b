from __future__ import annotations

import pytest

from transformer_serving.gateway.request_id import HEADER, request_id
from transformer_serving.gateway.settings import (
    GENERATE_ENDPOINT,
    SETTINGS,
    GatewaySettings,
    read_settings,
)

NUMBERS = [setting for setting in SETTINGS if setting is not GENERATE_ENDPOINT]


def test_defaults() -> None:
    assert read_settings({}) == GatewaySettings(2_000_000, 100_000, 64 * 2**20, 60.0, 10.0, 0.0)
    assert all(setting.help.endswith(".") for setting in SETTINGS)


def test_an_empty_variable_is_an_unset_one() -> None:
    assert read_settings({setting.name: "" for setting in SETTINGS}) == read_settings({})


def test_all_bodies_have_room_for_one() -> None:
    with pytest.raises(
        ValueError, match=r"^TRANSFORMER_SERVING_BODY_MEMORY_BYTES must be at least"
    ):
        read_settings({"TRANSFORMER_SERVING_MAX_BODY_BYTES": "100000000"})


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("value", ["-1", "x", "nan", "1e12", "inf"])
def test_a_wrong_value_names_its_variable(setting: object, value: str) -> None:
    name = setting.name  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=f"^{name} must be a number from"):
        read_settings({name: value})


@pytest.mark.parametrize("sane", [b"a", b"a b~!", b"x" * 128])
def test_sane_request_ids_are_taken_over(sane: bytes) -> None:
    assert request_id({HEADER: sane}) == sane


@pytest.mark.parametrize("bad", [b"", b"x" * 129, b"a\tb", b"a\n", b"\x7f", b"\xc3\xa9"])
def test_others_are_replaced(bad: bytes) -> None:
    assert len(request_id({HEADER: bad})) == len(request_id({})) == 32
