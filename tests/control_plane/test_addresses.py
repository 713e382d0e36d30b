"""What one caller stores under the address it called, others read under theirs."""

from __future__ import annotations

import pytest

from tests.control_plane.conftest import ApiClient
from transformer_serving.control_plane.addresses import own_path, with_own, without_own

HOST = "127.0.0.1:8008"


def test_a_model_stored_from_the_host_is_read_in_a_container(api: ApiClient) -> None:
    mine, other = "http://127.0.0.1:8008/bundles/1/model.zip", "http://files.example/model.zip"
    ours, theirs = api.model("ours", uri=mine), api.model("theirs", uri=other)
    assert api.get_model(ours)["uri"] == mine
    api.headers["Host"] = "control-plane:8008"
    assert api.get_model(ours)["uri"] == "http://control-plane:8008/bundles/1/model.zip"
    assert api.get_model(theirs)["uri"] == other
    found = api.call("models.get_all", only_fields=["uri"], id=[ours])["models"]
    assert found[0]["uri"] == "http://control-plane:8008/bundles/1/model.zip"


@pytest.mark.parametrize("host", ["a:1", "localhost", "[::1]:8008", "control_plane-1.x:80"])
def test_there_and_back(host: str) -> None:
    body = f'{{"uri": "http://{host}/a b", "text": "no http://{host}"}}'.encode()
    assert with_own(without_own(body, host), host) == body
    assert without_own(body, host) != body


@pytest.mark.parametrize("host", ["", 'a"b', "a\r\nb", "a/b", "a:b"])
def test_a_host_that_is_none_changes_nothing(host: str) -> None:
    stored = without_own(f'"http://{HOST}/x"'.encode(), HOST)
    assert with_own(stored, host) == stored
    assert without_own(stored, host) == stored


def test_own_paths() -> None:
    stored = without_own(f"http://{HOST}/a%20b/x".encode(), HOST).decode()
    assert own_path(stored, "whoever") == own_path(f"http://{HOST}/a%20b/x", HOST) == "/a b/x"
    assert own_path(f"http://{HOST}/x", "other:1") is None
