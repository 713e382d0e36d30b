"""Receiving a multipart upload as a stream: each part's field name is where its bytes go."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import unquote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.file_path import path_parts
from transformer_serving.control_plane.files.store import FileStore, Incoming

# Bytes gathered before a thread writes them: the loop never waits for the disk.
_WRITE_SIZE = 1024 * 1024
_DISPOSITION = b"content-disposition"
_NAME = re.compile(rb';\s*name="([^"]*)"', re.IGNORECASE)
_ENCODED_NAME = re.compile(rb";\s*name\*=utf-8''([^;\s]+)", re.IGNORECASE)
_FILE_NAME = re.compile(rb";\s*filename\*?=", re.IGNORECASE)


@dataclass(frozen=True)
class _Part:
    path: str
    incoming: Incoming


class _Receiver:
    """Turns the parser's callbacks into work for a thread: open, write, in their order.

    One thread at a time: a file that is closed under a write of a cancelled upload could send
    that write into another file, the next one to take its descriptor.
    """

    def __init__(self, files: FileStore, accepts: Callable[[str], bool]) -> None:
        self._files = files
        self._accepts = accepts
        self._work: list[Callable[[], None]] = []
        self._header: list[bytes] = [b"", b""]
        self._path: str | None = None
        self._parts: list[_Part] = []
        self._one_thread = threading.Lock()
        self.waiting = 0
        self.ended = False

    def part_begin(self) -> None:
        self._path = None

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def header_end(self) -> None:
        name, value = self._header
        self._header = [b"", b""]
        # A part without a file name is a form field, which the real server stores nowhere.
        if name.lower() == _DISPOSITION and _FILE_NAME.search(value):
            self._path = "/".join(path_parts(_target(value)))

    def headers_finished(self) -> None:
        path = self._path
        if path is None:
            return
        if not self._accepts(path):
            raise ApiError(ApiFailure.FIELD_VALUE, "path is taken by an API method")
        self._work.append(lambda: self._parts.append(_Part(path, self._files.receive())))

    def part_data(self, data: bytes, start: int, end: int) -> None:
        if self._path is None:
            return
        chunk = data[start:end]
        self.waiting += len(chunk)
        self._work.append(lambda: self._parts[-1].incoming.write(chunk))

    def end(self) -> None:
        self.ended = True

    def work_off(self) -> None:
        with self._one_thread:
            work, self._work, self.waiting = self._work, [], 0
            for step in work:
                step()

    def put_in_place(self) -> list[str]:
        if not self.ended:
            raise ApiError(ApiFailure.VALIDATION, "multipart body ends before its last boundary")
        if not self._parts:
            raise ApiError(ApiFailure.MISSING_FIELDS, "a part with a file name")
        with self._one_thread:
            for part in self._parts:
                self._files.put(part.incoming, part.path)
        return [part.path for part in self._parts]

    def discard(self) -> None:
        with self._one_thread:
            for part in self._parts:
                part.incoming.discard()


async def receive_upload(
    content_type: str,
    body: AsyncIterator[bytes],
    files: FileStore,
    accepts: Callable[[str], bool],
) -> list[str]:
    """Stores every file of the body, all of them at its end; answers their paths."""
    receiver = _Receiver(files, accepts)
    parser = _parser(content_type, receiver)
    try:
        async for chunk in body:
            parser.write(chunk)
            if receiver.waiting >= _WRITE_SIZE:
                await asyncio.to_thread(receiver.work_off)
        await asyncio.to_thread(receiver.work_off)
        return await asyncio.to_thread(receiver.put_in_place)
    except FormParserError as error:
        raise ApiError(
            ApiFailure.VALIDATION, "multipart body is malformed or has a header over 4 KiB"
        ) from error
    finally:
        # After a success there is nothing left to discard; after a cut connection there is.
        await asyncio.to_thread(receiver.discard)


def _parser(content_type: str, receiver: _Receiver) -> MultipartParser:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise ApiError(
            ApiFailure.VALIDATION, "Content-Type must be multipart/form-data; boundary=..."
        )
    return MultipartParser(
        boundary,
        {
            "on_part_begin": receiver.part_begin,
            "on_header_field": receiver.header_field,
            "on_header_value": receiver.header_value,
            "on_header_end": receiver.header_end,
            "on_headers_finished": receiver.headers_finished,
            "on_part_data": receiver.part_data,
            "on_end": receiver.end,
        },
    )


def _target(disposition: bytes) -> str:
    encoded, plain = _ENCODED_NAME.search(disposition), _NAME.search(disposition)
    try:
        if encoded:
            return unquote(encoded[1].decode("ascii"), errors="strict")
        if plain:
            # Clients write a quote inside the quoted name as %22, which `path_parts` reads as one;
            # nothing else is encoded.
            return plain[1].decode()
    except UnicodeDecodeError as error:
        raise ApiError(ApiFailure.FIELD_VALUE, "name of the part is no UTF-8") from error
    raise ApiError(ApiFailure.MISSING_FIELDS, "name of the part")
