"""The files of TLS at the front, looked at before they are used.

Tested by tests/gateway/test_tls.py.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.gateway.access import Access


@dataclass(frozen=True)
class Tls:
    """Files in PEM: the certificate with its chain, its key, and who signs callers' ones."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def files(self) -> list[Path]:
        return [self.cert, self.key, *([] if self.client_ca is None else [self.client_ca])]

    def check(self) -> None:
        """Raises ValueError naming the file that is missing or wrong: Granian would abort."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Asked for a passphrase, OpenSSL would wait at the terminal.
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        except _PassphraseError:
            raise ValueError(
                f"{self.key} asks for a passphrase; write it without one: "
                "openssl pkey -in KEY -out NEW_KEY"
            ) from None
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.cert} and {self.key} are no certificate and its key: {_reason(error)}"
            ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ValueError(
                    f"{self.client_ca} holds no certificates: {_reason(error)}"
                ) from None


def checked_tls(access: Access) -> Tls | None:
    """None where no certificate is named. Raises ValueError as Tls.check does."""
    if access.tls_cert is None or access.tls_key is None:
        return None
    tls = Tls(access.tls_cert, access.tls_key, access.tls_client_ca)
    tls.check()
    return tls


class _PassphraseError(Exception):
    """OpenSSL asked for one."""


def _no_passphrase() -> str:
    raise _PassphraseError


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
