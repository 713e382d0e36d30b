"""Who made a bundle: ed25519 over manifest.json and preprocess.py, checked where keys are trusted.

The manifest's signature lies beside it, that of preprocess.py is a comment in its head, so that
each is checked by whoever holds just that file: the controller beside Triton, the gateway before
the host runs the code. `cryptography` is imported only where keys are trusted.

Tested by tests/bundle/test_signing.py.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.identity import HEAD_LINES, SIGNATURE_LINE
from transformer_serving.contract.manifest import FILE_NAME, SIGNATURE_NAME
from transformer_serving.contract.naming import KEY_NAME

TRUSTED_KEYS_VARIABLE = "TRANSFORMER_SERVING_TRUSTED_KEYS"
TRUSTED_KEYS_HELP = (
    "Public keys, NAME:KEY and more after blanks: only bundles signed by one of them are served."
)
_KEY_BYTES = 32
_SIGN = "sign the bundle and deploy it again: transformer-serving sign BUNDLE KEY"
_MANIFEST, _PREPROCESS = (
    b"transformer-serving manifest.json\0",
    b"transformer-serving preprocess.py\0",
)


@dataclass(frozen=True)
class TrustedKeys:
    """Public keys by the names that they sign under."""

    keys: Mapping[str, bytes]

    @property
    def entries(self) -> frozenset[str]:
        """Each as the variable names it."""
        return frozenset(_entry(name, key) for name, key in self.keys.items())

    def check(self, message: bytes, line: bytes | None, what: str) -> str:
        """`line` is '# signature: NAME BASE64' or None. The entry of the key that signed.

        Raises ContractError that says the fix.
        """
        found = None if line is None else SIGNATURE_LINE.fullmatch(line)
        if found is None:
            raise ContractError(
                f"{what} is not signed, and {TRUSTED_KEYS_VARIABLE} is set; {_SIGN}"
            )
        name, signature = found[1].decode(), base64.b64decode(found[2])
        key = self.keys.get(name)
        if key is None:
            raise ContractError(
                f"{what} is signed by '{name}', whose key is not in {TRUSTED_KEYS_VARIABLE}; trust "
                f"that key, or {_SIGN}"
            )
        if not _verifies(key, signature, message):
            raise ContractError(
                f"{what} is not what '{name}' signed: it was changed afterwards, or signed with "
                f"another key of that name; {_SIGN}"
            )
        return _entry(name, key)


def read_trusted_keys(environment: Mapping[str, str]) -> TrustedKeys | None:
    """None where no key is named: then nothing is checked.

    Raises ContractError for an entry that is no key: what cannot be read must not let all in.
    """
    text = environment.get(TRUSTED_KEYS_VARIABLE, "")
    rows = [parse_public(row, number) for number, row in enumerate(text.split(), 1)]
    names = [name for name, _ in rows]
    if len(set(names)) != len(names):
        raise ContractError(f"{TRUSTED_KEYS_VARIABLE} names a key twice; give each its own name")
    return TrustedKeys(dict(rows)) if rows else None


def parse_public(text: str, number: int = 1) -> tuple[str, bytes]:
    """NAME:KEY as `signing-key new` prints it."""
    name, _, encoded = text.partition(":")
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not KEY_NAME.fullmatch(name) or len(key) != _KEY_BYTES:
        raise ContractError(
            f"{TRUSTED_KEYS_VARIABLE}: entry {number} is no NAME:KEY as "
            "'transformer-serving signing-key new NAME' prints it"
        )
    return name, key


def _entry(name: str, key: bytes) -> str:
    return f"{name}:{base64.b64encode(key).decode()}"


def manifest_message(manifest: bytes) -> bytes:
    """What is signed of a manifest.json."""
    return _MANIFEST + manifest


def preprocess_message(raw: bytes) -> bytes:
    """What is signed of a preprocess.py: all of it but the signature's own line."""
    return _PREPROCESS + split_signature(raw)[0]


def split_signature(raw: bytes) -> tuple[bytes, bytes | None]:
    """The file without the first signature line of its head, and that line."""
    lines = raw.split(b"\n", HEAD_LINES)
    for at, line in enumerate(lines[:HEAD_LINES]):
        if SIGNATURE_LINE.fullmatch(line):
            return b"\n".join([*lines[:at], *lines[at + 1 :]]), line
    return raw, None


def check_signed_manifest(folder: Path, keys: TrustedKeys) -> str:
    """`folder` is the bundle's model folder. The signer's entry. Raises ContractError."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise ContractError(f"the model has no {FILE_NAME}, so nobody signed it; {_SIGN}")
    signature = folder / SIGNATURE_NAME
    line = signature.read_bytes().rstrip(b"\n") if signature.is_file() else None
    return keys.check(manifest_message(path.read_bytes()), line, FILE_NAME)


def check_signed_preprocess(raw: bytes | None, keys: TrustedKeys) -> str:
    """The signer's entry. Raises ContractError; None is an endpoint without such a file, or with a
    folder."""
    if raw is None:
        raise ContractError(f"the endpoint has no preprocess.py that is signed; {_SIGN}")
    return keys.check(preprocess_message(raw), split_signature(raw)[1], "preprocess.py")


def _verifies(key: bytes, signature: bytes, message: bytes) -> bool:
    ed25519: Any = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    invalid: Any = importlib.import_module("cryptography.exceptions").InvalidSignature
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (invalid, ValueError):
        return False
    return True
