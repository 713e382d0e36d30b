"""Files over HTTP: up, down, in ranges, replaced, refused."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from transformer_serving.control_plane.files.store import FileStore
from transformer_serving.control_plane.settings import ControlPlaneSettings

if TYPE_CHECKING:
    from tests.control_plane.conftest import ApiClient, ServerProcess

BOUNDARY = "b0undary"


def upload(api: ApiClient, path: str, content: bytes) -> tuple[int, object]:
    answer = api.http.post("/", files={path: ("name.bin", content)}, headers=api.headers)
    return answer.status_code, answer.json()


def raw(
    api: ApiClient, body: bytes, kind: str = f"multipart/form-data; boundary={BOUNDARY}"
) -> int:
    headers = {**api.headers, "Content-Type": kind}
    return int(api.http.post("/", content=body, headers=headers).status_code)


def part(name: bytes, content: bytes = b"x", end: bytes = b"--") -> bytes:
    head = b"Content-Disposition: form-data; " + name + b'; filename="f"\r\n\r\n'
    line = b"--" + BOUNDARY.encode()
    return line + b"\r\n" + head + content + b"\r\n" + line + end + b"\r\n"


@pytest.mark.parametrize(
    "path",
    ["P/t.1/models/m.onnx", "a b/c d.bin", "ünï/日本.bin", 'quo"te/x', "semi;x=y"],
)
def test_up_and_down(api: ApiClient, path: str) -> None:
    assert upload(api, path, b"content") == (200, [path])
    answer = api.http.get("/" + quote(path), headers=api.headers)
    assert (answer.status_code, answer.content) == (200, b"content")
    assert answer.headers["content-length"] == "7"
    head = api.http.head("/" + quote(path), headers=api.headers)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == "7"


@pytest.mark.parametrize("header", [b'name="a%22b/w"', b"name*=utf-8''a%22b/w"])
@pytest.mark.parametrize("asked", ["/a%22b/w", "/a%2522b/w", "/a%2522b//./w"])
def test_a_quote_and_its_code_are_one_name(
    server: ServerProcess, header: bytes, asked: str
) -> None:
    """The SDK writes the code into a path itself, clients into the header of an upload."""
    allowed = {"Authorization": str(server.session().headers["Authorization"])}
    form = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}

    def answer(method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """As it is sent: other clients write a path anew."""
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as one:
            one.request(method, path, body, allowed | headers)
            got = one.getresponse()
            return got.status, got.read()

    assert answer("POST", "/", part(header), **form)[0] == 200
    assert answer("GET", asked) == (200, b"x")
    status, deleted = answer("DELETE", asked)
    assert (status, json.loads(deleted)) == (200, 'a"b/w')
    assert answer("GET", asked)[0] == 404


def test_a_delete_leaves_the_loop_to_others(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the disk, as long as that writes what is uploaded beside it."""
    delete = FileStore.delete
    on_the_loop: list[bool] = []

    def noted(files: FileStore, path: str) -> bool:
        on_the_loop.append(asyncio._get_running_loop() is not None)
        return delete(files, path)

    monkeypatch.setattr(FileStore, "delete", noted)
    assert upload(api, "/folder/x", b"one")[0] == 200
    for status in (200, 404):
        assert api.http.delete("/folder/x", headers=api.headers).status_code == status
    assert on_the_loop == [False, False]


def test_replace_and_delete(api: ApiClient) -> None:
    for content in (b"first", b"second"):
        assert upload(api, "/folder/x", content)[0] == 200
    assert api.http.get("/folder/x", headers=api.headers).content == b"second"
    assert api.http.delete("/folder/x", headers=api.headers).json() == "folder/x"
    for method in ("GET", "HEAD", "DELETE"):
        assert api.http.request(method, "/folder/x", headers=api.headers).status_code == 404


def test_an_empty_file(api: ApiClient) -> None:
    assert upload(api, "folder/empty", b"")[0] == 200
    answer = api.http.get("/folder/empty", headers=api.headers)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == "0"


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=-99", 206, b"0123456789"),
        ("bytes=8-99", 206, b"89"),
        ("bytes=0-1,3-4", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
        ("bytes=-", 200, b"0123456789"),
    ],
)
def test_ranges(api: ApiClient, wanted: str, status: int, content: bytes) -> None:
    upload(api, "folder/x", b"0123456789")
    answer = api.http.get("/folder/x", headers={**api.headers, "Range": wanted})
    assert (answer.status_code, answer.content) == (status, content)


@pytest.mark.parametrize("wanted", ["bytes=10-", "bytes=5-3", "bytes=-0"])
def test_ranges_outside_the_file(api: ApiClient, wanted: str) -> None:
    upload(api, "folder/x", b"0123456789")
    answer = api.http.get("/folder/x", headers={**api.headers, "Range": wanted})
    assert answer.status_code == 416


def test_several_files_at_once_and_fields_that_are_no_files(api: ApiClient) -> None:
    answer = api.http.post(
        "/",
        files={"f/one": ("a", b"1"), "f/two": ("b", b"2")},
        data={"plain": "field"},
        headers=api.headers,
    )
    assert answer.json() == ["f/one", "f/two"]
    assert api.http.get("/f/two", headers=api.headers).content == b"2"
    assert api.http.get("/plain", headers=api.headers).status_code == 404


@pytest.mark.parametrize("path", ["../x", "a/../../x", "v2.23/tasks.edit", "tasks.edit", "/"])
def test_refuses_a_target(api: ApiClient, path: str) -> None:
    status, body = upload(api, path, b"x" * 3_000_000)
    assert status == 400
    assert isinstance(body, dict)
    assert body["meta"]["result_subcode"] == 16


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        part(b"name=x", end=b""),
        part(b'name="x"', end=b""),
        part(b'name="x"')[:-30],
        part(b"nothing"),
        part(b'name="\xff"'),
        part(b"name*=utf-8''%ff"),
        part(b'name="' + b"n" * 5000 + b'"'),
        b'--b0undary\r\nContent-Disposition: form-data; name="x"\r\n\r\nv\r\n--b0undary--\r\n',
    ],
)
def test_refuses_a_body(api: ApiClient, settings: ControlPlaneSettings, body: bytes) -> None:
    assert raw(api, body) == 400
    assert not list((settings.data / "incoming").iterdir())
    assert not list((settings.data / "files").rglob("*"))


def test_the_encoded_form_of_a_name(api: ApiClient) -> None:
    assert raw(api, part(b"name*=utf-8''f/%C3%A4")) == 200
    assert api.http.get("/f/ä", headers=api.headers).content == b"x"


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", ""])
def test_refuses_another_content_type(api: ApiClient, kind: str) -> None:
    assert raw(api, part(b'name="x"'), kind) == 400


def test_refuses_an_encoded_body(api: ApiClient) -> None:
    headers = {**api.headers, "Content-Encoding": "gzip"}
    assert api.http.post("/", content=b"x", headers=headers).status_code == 415


def test_a_cut_connection_leaves_nothing(api: ApiClient, settings: ControlPlaneSettings) -> None:
    def body() -> Iterator[bytes]:
        yield part(b'name="f/x"', b"y" * 3_000_000, end=b"")[:-20]

    kind = f"multipart/form-data; boundary={BOUNDARY}"
    answer = api.http.post("/", content=body(), headers={**api.headers, "Content-Type": kind})
    assert answer.status_code == 400
    assert not list((settings.data / "incoming").iterdir())
