"""Who may call: Basic login for a token, the token for everything else."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path

import jwt

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.schema import COMPANY, USER, USER_NAME
from transformer_serving.control_plane.settings import ControlPlaneSettings

API_VERSION = "2.31"
SERVER_VERSION = "2.0.0"

_ALGORITHM = "HS256"
_SECRET_BYTES = 48
_DEFAULT_LIFETIME = 30 * 24 * 3600
_LONGEST_LIFETIME = 365 * 24 * 3600


class Authority:
    """Issues and checks tokens; a change of the credentials makes all earlier tokens invalid."""

    def __init__(self, settings: ControlPlaneSettings) -> None:
        self._access = settings.access_key.encode()
        self._secret = settings.secret_key.encode()
        stored = _stored_secret(settings.data / "token.secret")
        credentials = b"\0".join((self._access, self._secret))
        self._signing = hmac.digest(stored, credentials, hashlib.sha256)

    def login(self, header: str, expiration_sec: str) -> str:
        """A token for a Basic header, or for the Bearer header of a token still valid."""
        scheme, _, rest = header.partition(" ")
        if scheme.lower() == "bearer":
            self.check(header)
        else:
            self._check_basic(scheme, rest)
        return self._token(_lifetime(expiration_sec))

    def check(self, header: str) -> None:
        """Raises unless the header carries a token of this server that has not expired."""
        scheme, _, token = header.partition(" ")
        if not header:
            raise ApiError(ApiFailure.NO_CREDENTIALS)
        if scheme.lower() != "bearer":
            raise ApiError(ApiFailure.AUTH_TYPE)
        try:
            jwt.decode(
                token.strip(),
                self._signing,
                [_ALGORITHM],
                # When it was issued lies ahead, once this machine's clock has been set back.
                options={"require": ["exp"], "verify_iat": False},
            )
        except jwt.InvalidTokenError as error:
            raise ApiError(ApiFailure.TOKEN, type(error).__name__) from error

    def _check_basic(self, scheme: str, encoded: str) -> None:
        if not scheme:
            raise ApiError(ApiFailure.NO_CREDENTIALS)
        if scheme.lower() != "basic":
            raise ApiError(ApiFailure.AUTH_TYPE)
        try:
            access, colon, secret = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError) as error:
            raise ApiError(ApiFailure.BAD_CREDENTIALS) from error
        if not colon:
            raise ApiError(ApiFailure.BAD_CREDENTIALS)
        # Both are always compared, in constant time: neither time nor answer says which is wrong.
        same_access = hmac.compare_digest(access, self._access)
        same_secret = hmac.compare_digest(secret, self._secret)
        if not (same_access & same_secret):
            raise ApiError(ApiFailure.WRONG_CREDENTIALS)

    def _token(self, lifetime: int) -> str:
        moment = int(time.time())
        claims: dict[str, object] = {
            "iat": moment,
            "exp": moment + lifetime,
            "auth_type": "Bearer",
            "identity": {"user": USER, "user_name": USER_NAME, "company": COMPANY, "role": "user"},
            # The SDK falls back to API 2.9 without a version, and asks for vaults unless basic.
            "api_version": API_VERSION,
            "server_version": SERVER_VERSION,
            "feature_set": "basic",
        }
        return jwt.encode(claims, self._signing, _ALGORITHM)


def _lifetime(expiration_sec: str) -> int:
    if not expiration_sec:
        return _DEFAULT_LIFETIME
    # int() refuses thousands of digits with an error of its own.
    is_number = expiration_sec.isascii() and expiration_sec.isdigit() and len(expiration_sec) <= 18
    if not is_number or int(expiration_sec) < 1:
        raise ApiError(ApiFailure.VALIDATION, "expiration_sec must be a number from 1 to 18 digits")
    return min(int(expiration_sec), _LONGEST_LIFETIME)


def _stored_secret(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        secret = path.read_bytes()
        if len(secret) >= _SECRET_BYTES:
            return secret
        # Cut short by a crash while it was first written: no token was issued with it.
        path.unlink()
        return _stored_secret(path)
    with os.fdopen(descriptor, "wb") as file:
        secret = secrets.token_bytes(_SECRET_BYTES)
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    return secret
