"""Signing bundles: keys of one's own, and a signature over what a bundle is made of."""

from __future__ import annotations

import base64
import dataclasses
import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.identity import PREPROCESS
from transformer_serving.contract.manifest import FILE_NAME, SIGNATURE_NAME, entry_of
from transformer_serving.contract.naming import KEY_NAME, KEY_NAME_RULE
from transformer_serving.contract.replacement import replace_file
from transformer_serving.contract.signatures import (
    manifest_message,
    preprocess_message,
    split_signature,
)
from transformer_serving.desk.bundle.folder import Bundle, open_bundle_to_sign
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure

KEY_SUFFIX = ".key"
PUBLIC_SUFFIX = ".pub"
# Triton and the inference container read it as other users.
_MODE = 0o644


@dataclass(frozen=True)
class SigningKey:
    """A private key and the name that it signs under, which is its file's."""

    name: str
    private: Any

    @property
    def public(self) -> str:
        """NAME:KEY, as TRANSFORMER_SERVING_TRUSTED_KEYS takes it."""
        return (
            f"{self.name}:{base64.b64encode(self.private.public_key().public_bytes_raw()).decode()}"
        )

    def sign(self, message: bytes) -> bytes:
        signature = base64.b64encode(self.private.sign(message)).decode()
        return f"# signature: {self.name} {signature}".encode()


def new_key(name: str, folder: Path) -> tuple[Path, SigningKey]:
    """Write NAME.key (for this user only) and NAME.pub, or neither.

    Raises Failure where one of them is there.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not KEY_NAME.fullmatch(name):
        raise Failure(f"a key's name takes {KEY_NAME_RULE}", exit_code=2)
    key = SigningKey(name, Ed25519PrivateKey.generate())
    path = folder / f"{name}{KEY_SUFFIX}"
    public = path.with_suffix(PUBLIC_SUFFIX) if "." not in name else folder / f"{name}.pub"
    with ExitStack() as back:
        for file, mode, text in (
            (path, 0o600, base64.b64encode(key.private.private_bytes_raw()).decode()),
            (public, 0o644, key.public),
        ):
            descriptor = _opened_anew(file, mode)
            back.callback(file.unlink, missing_ok=True)
            with os.fdopen(descriptor, "w") as opened:
                opened.write(text + "\n")
        back.pop_all()
    return path, key


def _opened_anew(file: Path, mode: int) -> int:
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except FileExistsError:
        raise Failure(
            f"{file} is there already and is never replaced: what it signed could not be "
            "checked any more; choose another name",
            exit_code=2,
        ) from None
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}", exit_code=2) from error


def read_key(path: Path) -> SigningKey:
    """Raises Failure (exit code 2) for a file that is no key, or that others can read."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        mode = path.stat().st_mode
        raw = base64.b64decode(path.read_bytes().strip(), validate=True)
        private = Ed25519PrivateKey.from_private_bytes(raw)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", exit_code=2) from error
    except ValueError as error:
        raise Failure(
            f"{path} is no signing key; make one: {command_line('signing-key new NAME')}",
            exit_code=2,
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise Failure(f"others can read {path}; chmod 600 {path}, or make another", exit_code=2)
    if not KEY_NAME.fullmatch(path.stem):
        raise Failure(f"{path}: the name of a key's file is the key's; rename it", exit_code=2)
    return SigningKey(path.stem, private)


def sign_bundle(folder: Path, key: SigningKey) -> Bundle:
    """Sign a bundle in place, anew where it was signed before; its number stays."""
    return signed(open_bundle_to_sign(folder), key)


def signed(bundle: Bundle, key: SigningKey) -> Bundle:
    """The same of a bundle whose files are known to be its manifest's, as of one just written.

    preprocess.py first, then the manifest that lists it: a crash between them leaves a bundle that
    is refused as changed, never one that passes.
    """
    path = bundle.preprocess
    plain, _ = split_signature(path.read_bytes())
    first, rest = plain.split(b"\n", 1)
    line = key.sign(preprocess_message(plain))
    replace_file(path, b"\n".join([first, line, rest]), mode=_MODE)
    files = tuple(
        entry_of(bundle.folder, path) if entry.path == PREPROCESS else entry
        for entry in bundle.manifest.files
    )
    manifest = dataclasses.replace(bundle.manifest, files=files)
    content = manifest.to_json().encode()
    replace_file(bundle.model_folder / FILE_NAME, content, mode=_MODE)
    signature = key.sign(manifest_message(content)) + b"\n"
    replace_file(bundle.model_folder / SIGNATURE_NAME, signature, mode=_MODE)
    return dataclasses.replace(bundle, manifest=manifest)
