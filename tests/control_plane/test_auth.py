"""Login, tokens and who is refused what."""

from __future__ import annotations

import asyncio
import base64
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from starlette.testclient import TestClient

from tests.control_plane.conftest import ACCESS_KEY, SECRET_KEY
from transformer_serving.control_plane.app import create_app
from transformer_serving.control_plane.auth import Authority
from transformer_serving.control_plane.errors import ApiError
from transformer_serving.control_plane.settings import (
    ControlPlaneSettings,
    SettingsError,
    settings_from_environment,
)


def basic(access: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{access}:{secret}".encode()).decode()


def claims(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


@pytest.fixture
def authority(settings: ControlPlaneSettings) -> Authority:
    settings.data.mkdir(parents=True)
    return Authority(settings)


@pytest.fixture
def right(settings: ControlPlaneSettings) -> str:
    return basic(settings.access_key, settings.secret_key)


def test_token_says_what_the_sdk_reads(authority: Authority, right: str) -> None:
    token = authority.login(right, "")
    assert claims(token)["api_version"] == "2.31"
    assert claims(token)["feature_set"] == "basic"
    authority.check(f"Bearer {token}")


@pytest.mark.parametrize(("asked", "given"), [("", 30), ("86400", 1), ("99999999999", 365)])
def test_lifetime_in_days(authority: Authority, right: str, asked: str, given: int) -> None:
    fields = claims(authority.login(right, asked))
    assert fields["exp"] - fields["iat"] == given * 86400


@pytest.mark.parametrize("asked", ["0", "-5", "soon", "1.5", "²"])
def test_refuses_a_lifetime_that_is_none(authority: Authority, right: str, asked: str) -> None:
    with pytest.raises(ApiError, match="expiration_sec"):
        authority.login(right, asked)


def test_a_valid_token_logs_in_for_a_new_one(authority: Authority, right: str) -> None:
    token = authority.login(right, "100")
    authority.check("Bearer " + authority.login(f"Bearer {token}", ""))


@pytest.mark.parametrize(
    ("header", "subcode"),
    [
        ("", 20),
        ("Digest x", 10),
        ("Basic !!!", 21),
        ("Basic " + base64.b64encode(b"no colon").decode(), 21),
        (basic("access-of-the-test", "wrong"), 22),
        (basic("wrong", "secret-of-the-test"), 22),
        (basic("ä", "ö"), 22),
        ("Bearer x.y.z", 30),
    ],
)
def test_refuses_a_login(http: TestClient, header: str, subcode: int) -> None:
    answer = http.get("/auth.login", headers={"Authorization": header.encode()} if header else {})
    meta = answer.json()["meta"]
    assert (answer.status_code, meta["result_subcode"]) == (401, subcode)
    assert "secret-of-the-test" not in answer.text


def test_refuses_tokens_of_another_server_or_time(
    authority: Authority, settings: ControlPlaneSettings, right: str, tmp_path: Path
) -> None:
    token = authority.login(right, "")
    renewed = Authority(replace(settings, secret_key="changed"))
    elsewhere = replace(settings, data=tmp_path)
    expired = jwt.encode({"exp": 1}, "x" * 32)
    unsigned = jwt.encode({"exp": 2**40}, "", algorithm="none")
    for checker, wrong in (
        (renewed, token),
        (Authority(elsewhere), token),
        (authority, expired),
        (authority, unsigned),
        (authority, ""),
    ):
        with pytest.raises(ApiError, match="token"):
            checker.check(f"Bearer {wrong}")


def test_tokens_outlive_a_restart(
    authority: Authority, settings: ControlPlaneSettings, right: str
) -> None:
    Authority(settings).check("Bearer " + authority.login(right, ""))


def test_a_token_is_good_on_after_the_clock_was_set_back(
    authority: Authority, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tomorrow = time.time() + 86_400
    with monkeypatch.context() as ahead:
        ahead.setattr("time.time", lambda: tomorrow)
        token = authority.login(right, "")
    assert claims(token)["iat"] == int(tomorrow)
    authority.check(f"Bearer {token}")


def test_secret_is_long_and_only_ours_to_read(
    authority: Authority, settings: ControlPlaneSettings
) -> None:
    secret = settings.data / "token.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(secret.read_bytes()) >= 32


def test_a_secret_cut_short_is_made_anew(settings: ControlPlaneSettings, right: str) -> None:
    settings.data.mkdir(parents=True)
    (settings.data / "token.secret").write_bytes(b"short")
    authority = Authority(settings)
    authority.check("Bearer " + authority.login(right, ""))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2.23/tasks.get_all"),
        ("POST", "/tasks.get_all"),
        ("GET", "/v2.23/unknown.method"),
        ("GET", "/folder/file"),
        ("HEAD", "/folder/file"),
        ("DELETE", "/folder/file"),
        ("POST", "/"),
    ],
)
@pytest.mark.parametrize("header", ["", "Bearer wrong"])
def test_nothing_else_is_open(http: TestClient, method: str, path: str, header: str) -> None:
    headers = {"Authorization": header} if header else {}
    assert http.request(method, path, headers=headers).status_code == 401


def test_keys_come_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TRANSFORMER_SERVING_SECRET_KEY"):
        settings_from_environment(tmp_path, "", 1, {"TRANSFORMER_SERVING_ACCESS_KEY": "a"})
    both = {"TRANSFORMER_SERVING_ACCESS_KEY": "a", "TRANSFORMER_SERVING_SECRET_KEY": "hidden"}
    assert "hidden" not in repr(settings_from_environment(tmp_path, "", 1, both))


@pytest.mark.parametrize("method", ["auth.login", "tasks.get_all", "models.create", "an/upload"])
def test_nothing_of_a_body_is_read_before_the_credentials(
    settings: ControlPlaneSettings, method: str
) -> None:
    """Neither of a call nor of an upload: the app that is asked has not taken a byte."""
    app = create_app(settings)
    asked: list[int] = []
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        asked.append(1)
        return {"type": "http.request", "body": b"a" * 65_536, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": f"/{method}", "headers": [],
        "query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 401
    assert not asked


def test_thousands_of_digits_are_no_number(http: TestClient) -> None:
    digits = "9" * 5000
    login = http.get(f"/auth.login?expiration_sec={digits}", auth=(ACCESS_KEY, SECRET_KEY))
    assert (login.status_code, login.json()["meta"]["result_subcode"]) == (400, 12)
