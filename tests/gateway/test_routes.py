"""Paths of other protocols: what they ask for, of whom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.dialects import DIALECTS
from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.descriptions import DESCRIPTIONS
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.routes import ROUTES, Route, call_of, json_and_binary, named_in

BINARY = Route("POST", "/x/{name}", "v2.infer", binary=True)
BY_BODY = Route("POST", "/x", "openai.embeddings", named_in="model")


def scope(method: str, path: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "path": path, **more}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_each_route_is_found_by_its_path(route: Route) -> None:
    path = route.path.replace("{name}", "a.b").replace("{version}", "3")
    for found in (call_of(scope(route.method, path)), call_of(scope(route.method, path + "/"))):
        if found is not None and found.route is route:
            break
    else:
        pytest.fail("another route, or none, answers this one's path")
    wanted = RequestedEndpoint("a.b", "3" if "{version}" in route.path else None)
    assert found.target == (wanted if "{name}" in route.path else None)
    assert (route.named_in is not None) == (route.method == "POST" and "{name}" not in route.path)
    assert (route.operation in DESCRIPTIONS) == found.is_question
    assert found.operation == route.operation
    assert route.operation.partition(".")[0] in DIALECTS


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_what_is_near_a_route_is_none(route: Route) -> None:
    path = route.path.replace("{name}", "a").replace("{version}", "3")
    for other in (path + "/x/y/z", "/x" + path, path.replace("a", "", 1) + "//"):
        call = call_of(scope(route.method, other))
        assert call is None or call.route is not route
    deleted = call_of(scope("DELETE", path))
    # As is told in the dialect, where it has one.
    assert deleted is None or (deleted.operation or "").endswith(".nothing")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_head_asks_what_get_does(route: Route) -> None:
    path = route.path.replace("{name}", "a.b").replace("{version}", "3")
    asked = call_of(scope("HEAD", path))
    if route.method == "GET":
        assert asked == call_of(scope("GET", path))
        assert asked is not None
        assert asked.is_question
    else:
        assert asked is None or asked.route is not route


@pytest.mark.parametrize(
    ("base", "version", "some"),
    [
        ("/tei/{name}", "/versions/{version}", {("GET", "/"), ("POST", "/embed")}),
        ("/tgi/{name}", "/versions/{version}", {("GET", "/"), ("GET", "/ping"), ("GET", "")}),
        ("/hf/{name}", "/{version}", {("POST", "/"), ("POST", "")}),
    ],
)
def test_a_version_answers_every_path(base: str, version: str, some: set[tuple[str, str]]) -> None:
    rows = {(route.method, route.path): route for route in ROUTES if route.path.startswith(base)}
    of_a_name = {row for row in rows if "{version}" not in row[1]}
    assert {(method, base + path) for method, path in some} <= of_a_name
    for method, path in of_a_name:
        other = path.replace("{name}", "{name}" + version)
        assert rows[method, other].operation == rows[method, path].operation
        assert rows[method, other].media_type == rows[method, path].media_type
    assert len(rows) == 2 * len(of_a_name)


@pytest.mark.parametrize(("path", "version"), [("/hf/a", None), ("/hf/a/2", "2")])
def test_a_version_answers_openais_paths_of_the_inference_api(
    path: str, version: str | None
) -> None:
    for below, operation in (("chat/completions", "tgi_chat"), ("completions", "tgi_completions")):
        call = call_of(scope("POST", f"{path}/v1/{below}"))
        assert call is not None
        assert call.target == RequestedEndpoint("a", version)
        assert call.operation == f"openai.{operation}"


def test_ours_needs_no_route() -> None:
    call = call_of(scope("POST", "/serve/a/2"))
    assert call is not None
    assert (call.target, call.route, call.operation) == (RequestedEndpoint("a", "2"), None, None)


@given(st.text(max_size=40))
def test_no_path_is_too_strange(path: str) -> None:
    call_of(scope("POST", "/" + path, root_path=""))


@pytest.mark.parametrize("name", ["a", "a/2", "a/"])
def test_a_body_names_its_endpoint(name: str) -> None:
    version = "2" if "2" in name else None
    assert named_in({"model": name}, BY_BODY) == RequestedEndpoint("a", version)


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}, {"model": ["a"]}])
def test_or_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ServingError, match="model"):
        named_in(body, BY_BODY)


HEADER = b"inference-header-content-length"


def test_bytes_after_the_json() -> None:
    assert json_and_binary(b"{}abc", BINARY, {HEADER: b"2"}) == (b"{}", b"abc")
    assert json_and_binary(b"{}", BINARY, {}) == (b"{}", b"")
    # Where none may follow, the header means nothing.
    assert json_and_binary(b"{}abc", BY_BODY, {HEADER: b"2"}) == (b"{}abc", b"")


def test_bytes_alone_are_told_what_is_missing() -> None:
    """Triton's raw binary request."""
    with pytest.raises(ServingError, match="name, shape and datatype before them"):
        json_and_binary(b"abc", BINARY, {HEADER: b"0"})
    # Of nothing at all that is no advice.
    assert json_and_binary(b"", BINARY, {HEADER: b"0"}) == (b"", b"")


@pytest.mark.parametrize("length", [b"6", b"-1", b"", b"a", b"9" * 30])
def test_a_length_that_is_none(length: bytes) -> None:
    with pytest.raises(ServingError, match="inference-header"):
        json_and_binary(b"{}abc", BINARY, {HEADER: length})
