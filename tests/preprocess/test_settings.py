from __future__ import annotations

import pytest

from preprocess.settings import read_settings
from transformer_serving.contract.preprocess_settings import SETTINGS, check_settings
from transformer_serving.contract.triton_addresses import read_addresses


def test_defaults() -> None:
    settings = read_settings({})
    assert (settings.transport, settings.triton) == ("http", "127.0.0.1:8000")
    assert read_settings({row.name: "" for row in SETTINGS}) == settings
    assert all(row.help.endswith(".") for row in SETTINGS)


def test_the_address_of_the_chosen_transport() -> None:
    environment = {
        "CLEARML_DEFAULT_TRITON_GRPC_ADDR": "triton:9001",
        "TRANSFORMER_SERVING_TRITON_HTTP": "a:1,b:2",
    }
    assert read_settings(environment).triton == "a:1,b:2"
    assert read_settings({**environment, "TRANSFORMER_SERVING_TRANSPORT": "grpc"}).triton == (
        "triton:9001"
    )
    # The embedded stack's sockets are named so that one address follows from the other.
    socket = {"CLEARML_DEFAULT_TRITON_GRPC_ADDR": "unix:/run/triton:8001"}
    assert read_settings(socket).triton == "unix:/run/triton:8000"
    own = {"TRANSFORMER_SERVING_TRANSPORT": "grpc", "TRANSFORMER_SERVING_TRITON_GRPC": "c:3"}
    assert read_settings({**environment, **own}).triton == "c:3"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRANSFORMER_SERVING_TRANSPORT", "carrier pigeon"),
        ("TRANSFORMER_SERVING_TRITON_HTTP", "triton"),
        ("TRANSFORMER_SERVING_TRITON_HTTP", "a:1,,b:2"),
        ("TRANSFORMER_SERVING_TRITON_HTTP", "a:0"),
        ("TRANSFORMER_SERVING_TRITON_HTTP", "a:1,b:65536"),
        ("TRANSFORMER_SERVING_TRITON_HTTP", "a:" + "9" * 5000),
        ("TRANSFORMER_SERVING_TRITON_HTTP", "a:8000²"),
        ("TRANSFORMER_SERVING_TIMEOUT_S", "0"),
        ("TRANSFORMER_SERVING_CALLS_IN_FLIGHT", "65"),
        ("TRANSFORMER_SERVING_CALLS_IN_FLIGHT", "0.5"),
        ("TRANSFORMER_SERVING_MAX_WAITING_TOKENS", "0"),
        ("TRANSFORMER_SERVING_MAX_WAITING_TOKENS", "9" * 5000),
        ("TRANSFORMER_SERVING_METRICS_PORT", "-1"),
        ("TRANSFORMER_SERVING_METRICS_PORT", "65536"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    for check in (read_settings, check_settings):
        with pytest.raises(ValueError, match=name):
            check({name: value})


def test_the_ports_of_an_address() -> None:
    for port in ("1", "08000", "65535"):
        assert read_addresses(f"a:{port}") == (f"a:{port}",)
    with pytest.raises(ValueError, match="from 1 to 65535, .* got 'b:65536'"):
        read_addresses("a:1,b:65536")


def test_an_address_of_clearml_servings_own_client_is_not_ours_to_judge() -> None:
    """Not before there is a bundle of ours to read it: a stock endpoint may want another form."""
    check_settings({"CLEARML_DEFAULT_TRITON_GRPC_ADDR": "dns:///triton"})
