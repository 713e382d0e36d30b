from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from preprocess.settings import PreprocessSettings, read_settings
from transformer_serving.contract.settings.preprocess import SETTINGS, check_settings
from transformer_serving.contract.settings.triton_addresses import parts_of, read_addresses


def test_defaults() -> None:
    settings = read_settings({})
    assert settings == PreprocessSettings(
        transport="http",
        triton="127.0.0.1:8000",
        triton_grpc="127.0.0.1:8001",
        timeout_s=30.0,
        max_wait_s=2.0,
        max_waiting_tokens=400_000,
        calls_in_flight=2,
        max_streams=128,
        generation_timeout_s=600.0,
        first_token_s=60.0,
        token_gap_s=30.0,
        metrics_port=0,
        metrics_host="127.0.0.1",
    )
    assert read_settings({row.name: "" for row in SETTINGS}) == settings
    assert all(row.help.endswith(".") for row in SETTINGS)


# Each variable's text, and the fields that it changes.
GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "TRANSFORMER_SERVING_TRANSPORT": ("grpc", {"transport": "grpc", "triton": "127.0.0.1:8001"}),
    "TRANSFORMER_SERVING_TRITON_HTTP": ("a:1", {"triton": "a:1"}),
    "TRANSFORMER_SERVING_TRITON_GRPC": ("b:2", {"triton_grpc": "b:2"}),
    "TRANSFORMER_SERVING_TIMEOUT_S": ("31", {"timeout_s": 31.0}),
    "TRANSFORMER_SERVING_MAX_WAIT_S": ("32", {"max_wait_s": 32.0}),
    "TRANSFORMER_SERVING_MAX_WAITING_TOKENS": ("33", {"max_waiting_tokens": 33}),
    "TRANSFORMER_SERVING_CALLS_IN_FLIGHT": ("34", {"calls_in_flight": 34}),
    "TRANSFORMER_SERVING_MAX_STREAMS": ("35", {"max_streams": 35}),
    "TRANSFORMER_SERVING_GENERATION_TIMEOUT_S": ("36", {"generation_timeout_s": 36.0}),
    "TRANSFORMER_SERVING_FIRST_TOKEN_S": ("37", {"first_token_s": 37.0}),
    "TRANSFORMER_SERVING_TOKEN_GAP_S": ("38", {"token_gap_s": 38.0}),
    "TRANSFORMER_SERVING_METRICS_PORT": ("39", {"metrics_port": 39}),
    "TRANSFORMER_SERVING_METRICS_HOST": ("0.0.0.0", {"metrics_host": "0.0.0.0"}),
}


@pytest.mark.parametrize("name", [row.name for row in SETTINGS])
def test_each_variable_has_its_field(name: str) -> None:
    text, fields = GIVEN[name]
    assert read_settings({name: text}) == dataclasses.replace(read_settings({}), **fields)


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
    for none in (":8000", "a", "a:", "a:0", "a:port"):
        with pytest.raises(ValueError, match="must be host:port"):
            read_addresses(none)


def test_sockets_and_hosts_may_share_the_calls() -> None:
    found = read_addresses("unix:/run/triton.sock, http://a:8000/,[::1]:8000")
    assert found == ("unix:/run/triton.sock", "a:8000", "[::1]:8000")
    assert parts_of(found[2]) == ("::1", 8000)


def test_an_address_of_clearml_servings_own_client_is_not_ours_to_judge() -> None:
    """Not before there is a bundle of ours to read it: a stock endpoint may want another form."""
    check_settings({"CLEARML_DEFAULT_TRITON_GRPC_ADDR": "dns:///triton"})


STOCK, HTTP = "CLEARML_DEFAULT_TRITON_GRPC_ADDR", "TRANSFORMER_SERVING_TRITON_HTTP"
GRPC, TRANSPORT = "TRANSFORMER_SERVING_TRITON_GRPC", "TRANSFORMER_SERVING_TRANSPORT"


@pytest.mark.parametrize(
    ("stock", "http", "grpc"),
    [
        ("gpus", "gpus:8000", "gpus:8001"),
        ("dns:///gpus:9001", "gpus:8000", "gpus:9001"),
        ("dns:gpus:9001", "gpus:8000", "gpus:9001"),
        ("a:8001,b:8001", "a:8000,b:8000", "a:8001,b:8001"),
        ("[::1]:8001", "[::1]:8000", "[::1]:8001"),
        ("http://gpus:8001/", "gpus:8000", "gpus:8001"),
    ],
)
def test_the_addresses_that_follow_from_clearml_servings(stock: str, http: str, grpc: str) -> None:
    settings = read_settings({STOCK: stock}, has_streams=True)
    assert (settings.triton, settings.triton_grpc) == (http, grpc)


@pytest.mark.parametrize("stock", ["dns://1.1.1.1/gpus", "ipv4:127.0.0.1:8001", "::1", "a:1,"])
def test_a_form_from_which_none_follows_stops_what_needs_one(stock: str) -> None:
    """And the refusal names what can be set in its place."""
    with pytest.raises(ValueError, match=f"{HTTP} is empty, and {STOCK} is not .*: set {HTTP}$"):
        read_settings({STOCK: stock})
    own = {STOCK: stock, HTTP: "gpus:8000"}
    assert (read_settings(own).triton, read_settings(own).triton_grpc) == ("gpus:8000", "")
    for transport, has_streams in (("http", True), ("grpc", False)):
        with pytest.raises(ValueError, match=f"^{GRPC} is empty, and .*: set {GRPC}$"):
            read_settings({**own, TRANSPORT: transport}, has_streams=has_streams)
    whole = read_settings({**own, GRPC: "gpus:8001"}, has_streams=True)
    assert (whole.triton, whole.triton_grpc) == ("gpus:8000", "gpus:8001")


def test_a_socket_alone_is_grpcs() -> None:
    socket = {STOCK: "unix:/run/triton.sock"}
    with pytest.raises(ValueError, match=f"set {HTTP}$"):
        read_settings(socket)
    assert read_settings({**socket, HTTP: "gpus:8000"}).triton_grpc == "unix:/run/triton.sock"


def test_streams_ask_for_no_http_address() -> None:
    """They come by gRPC alone; one that is set and wrong is refused all the same."""
    socket = {STOCK: "unix:/run/triton.sock"}
    settings = read_settings(socket, has_streams=True)
    assert (settings.triton, settings.triton_grpc) == ("", "unix:/run/triton.sock")
    own = {STOCK: "dns://1.1.1.1/gpus", GRPC: "gpus:8001"}
    assert read_settings(own, has_streams=True).triton_grpc == "gpus:8001"
    with pytest.raises(ValueError, match=HTTP):
        read_settings({**own, HTTP: "gpus"}, has_streams=True)
