"""Which bundle a preprocess.py is of, computed again from what it is made of.

A bundle's hash covers what decides answers: the model's files, tokenizer.json, endpoint.json
without the hash itself, and the code of preprocess.py: all of the file but the three places that
the hash or a signature goes into. The parity set and the recorded golden answer, which one
processor computed, are no part of it; the manifest lists and hashes them. preprocess.py carries
the other parts, so that it can be held to its number wherever it is.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.manifest import FILE_NAME, FileEntry, bundle_hash, bundle_version
from transformer_serving.contract.naming import KEY_NAME

ENDPOINT, TOKENIZER, PREPROCESS, PARTS = (
    "endpoint.json",
    "tokenizer.json",
    "preprocess.py",
    "parts.json",
)
# As engine.proof.parity_set has it.
PARITY_SET = "parity.json"
# The name of who signed, and 64 bytes in base64. No line break of Python's fits in.
SIGNATURE_LINE = re.compile(rb"# signature: (%b) ([A-Za-z0-9+/]{86}==)" % KEY_NAME.pattern.encode())
_VERSION_LINE = re.compile(rb"# bundle-version: ([0-9]{1,13})")
_DATA_LINE = re.compile(rb'DATA = "([A-Za-z0-9+/=]*)"')
# Where a number or a signature may stand: beyond it such a line is code like any other.
HEAD_LINES = 20
# Against an archive that unpacks to more than any tokenizer.
MAX_DATA_BYTES = 1 << 30
# As bundles are packed; others' modules raise errors of their own.
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What zipfile lets through of an archive that is damaged; RuntimeError: a member is encrypted.
DAMAGED_ARCHIVE = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, OSError, EOFError)
_AGAIN = "deploy the bundle as it was converted, or convert again"


@dataclass(frozen=True)
class Identity:
    """The number and the hash of a bundle, as computed."""

    bundle_version: int
    bundle_hash: str


def identity_of(parts: Mapping[str, str]) -> Identity:
    """The identity of these parts; the names are the bundle's paths."""
    digest = bundle_hash(parts)
    return Identity(bundle_version(digest), digest)


def model_parts(files: Iterable[FileEntry]) -> dict[str, str]:
    """The model's files by their hashes, as a manifest lists them, without the parity set."""
    return {
        entry.path: entry.sha256
        for entry in files
        if entry.path.startswith("model/")
        and entry.path not in (f"model/{FILE_NAME}", f"model/{PARITY_SET}")
    }


def own_parts(endpoint_json: bytes, tokenizer_json: bytes, code: str) -> dict[str, str]:
    """What is not the model's: `code` is the code_digest of preprocess.py."""
    fields = json.loads(endpoint_json)
    for name in ("bundle_version", "bundle_hash", "recorded"):
        fields.pop(name, None)
    meaning = json.dumps(fields, sort_keys=True).encode()
    return {
        ENDPOINT: hashlib.sha256(meaning).hexdigest(),
        TOKENIZER: hashlib.sha256(tokenizer_json).hexdigest(),
        PREPROCESS: code,
    }


def code_digest(raw: bytes) -> str:
    """The hash of a preprocess.py of ours without its number, its signature and its data.

    What is left out is a comment or a plain literal wherever it stands, so nothing that runs is.
    """
    lines = raw.split(b"\n")
    at = _data_line(lines)
    lines[at] = b'DATA = ""'
    kept = [
        _VERSION_LINE.sub(b"# bundle-version:", line) if _VERSION_LINE.fullmatch(line) else line
        for line in lines[:HEAD_LINES]
        if not SIGNATURE_LINE.fullmatch(line)
    ]
    return hashlib.sha256(b"\n".join([*kept, *lines[HEAD_LINES:]])).hexdigest()


def stated_version(raw: bytes) -> int | None:
    """The bundle that a file says it is of; None for somebody else's."""
    for line in raw.split(b"\n", HEAD_LINES)[:HEAD_LINES]:
        found = _VERSION_LINE.fullmatch(line.rstrip(b"\r "))
        if found:
            return int(found[1])
    return None


def check_preprocess(raw: bytes, parts: Mapping[str, str] | None = None) -> Identity:
    """The identity of a preprocess.py, which must be the one that it states.

    `parts` are the model's files as the manifest has them, those of the file itself unless given.
    Raises ContractError for a file that was changed after its bundle was made.
    """
    data = data_of(raw)
    fields = _json(data[ENDPOINT])
    own = own_parts(data[ENDPOINT], data[TOKENIZER], code_digest(raw))
    model = _json(data[PARTS]) if parts is None else parts
    found = identity_of({**own, **{str(name): str(value) for name, value in model.items()}})
    stated = (fields.get("bundle_version"), fields.get("bundle_hash"), stated_version(raw))
    if stated != (found.bundle_version, found.bundle_hash, found.bundle_version):
        raise ContractError(
            f"preprocess.py is not the one of bundle {stated_version(raw)}: with its model it is "
            f"bundle {found.bundle_version}, so it or the model was changed after the bundle was "
            f"made; {_AGAIN}"
        )
    return found


def data_of(raw: bytes) -> dict[str, bytes]:
    """endpoint.json, tokenizer.json and parts.json that a preprocess.py carries."""
    lines = raw.split(b"\n")
    found = _DATA_LINE.fullmatch(lines[_data_line(lines)])
    assert found is not None
    try:
        archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(found[1], validate=True)))
        rows = archive.infolist()
        if sorted(row.filename for row in rows) != sorted((ENDPOINT, TOKENIZER, PARTS)):
            raise ContractError(f"preprocess.py carries other files than a bundle's; {_AGAIN}")
        if any(row.compress_type not in _PACKED for row in rows):
            raise ContractError(f"preprocess.py carries a damaged archive; {_AGAIN}")
        if sum(row.file_size for row in rows) > MAX_DATA_BYTES:
            raise ContractError(f"preprocess.py carries more than {MAX_DATA_BYTES} bytes; {_AGAIN}")
        return {row.filename: _unpacked(archive, row) for row in rows}
    except ContractError:
        raise
    # ValueError: binascii's, and names and numbers that cannot be.
    except (*DAMAGED_ARCHIVE, ValueError) as error:
        raise ContractError(f"preprocess.py carries a damaged archive; {_AGAIN}") from error


def _unpacked(archive: zipfile.ZipFile, row: zipfile.ZipInfo) -> bytes:
    """No more than the size that was added up: a read of all unpacks first and looks then."""
    with archive.open(row) as file:
        return file.read(row.file_size)


def _data_line(lines: list[bytes]) -> int:
    found = [at for at, line in enumerate(lines) if line.startswith(b"DATA")]
    if len(found) != 1 or not _DATA_LINE.fullmatch(lines[found[0]]):
        raise ContractError(f"preprocess.py is no preprocess file of a bundle; {_AGAIN}")
    return found[0]


def _json(raw: bytes) -> dict[str, object]:
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ContractError(f"preprocess.py carries a file that is no JSON object; {_AGAIN}")
    return values
