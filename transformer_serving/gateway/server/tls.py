"""The files of TLS at the front, looked at before they are used.

Tested by tests/gateway/test_tls.py.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import PublicKeyAlgorithmOID

# Of ring 0.17, which Granian's TLS is built with: OpenSSL knows more, and a worker would end.
_KEY_TYPES = (
    "RSA of 2048 bits", "RSA of 3072 bits", "RSA of 4096 bits", "ECDSA over secp256r1",
    "ECDSA over secp384r1", "Ed25519",
)  # fmt: skip
_LEAST_EXPONENT = 65_537


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
        self._check_pair(context)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ValueError(
                    f"{self.client_ca} holds no certificates: {_reason(error)}"
                ) from None

    def _check_pair(self, context: ssl.SSLContext) -> None:
        try:
            # Asked for a passphrase, OpenSSL would wait at the terminal.
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
            leaf = x509.load_pem_x509_certificate(self.cert.read_bytes())
        except _PassphraseError:
            raise ValueError(
                f"{self.key} asks for a passphrase; write it without one: "
                "openssl pkey -in KEY -out NEW_KEY"
            ) from None
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.cert} and {self.key} are no certificate and its key: {_reason(error)}"
            ) from None
        if leaf.version is x509.Version.v1:
            raise ValueError(
                f"{self.cert} is a certificate of X.509 version 1, which TLS here cannot use; "
                "sign one of version 3: openssl x509 -req ... -extfile FILE"
            )
        if (kind := _key_type(leaf)) not in _KEY_TYPES:
            raise ValueError(
                f"{self.key} is {kind}, which TLS here cannot use; it takes {', '.join(_KEY_TYPES)}"
            )


def _key_type(certificate: x509.Certificate) -> str:
    """By its other half, which is the certificate's."""
    if certificate.public_key_algorithm_oid == PublicKeyAlgorithmOID.RSASSA_PSS:
        return "RSA for RSASSA-PSS alone"
    try:
        key = certificate.public_key()
    except UnsupportedAlgorithm:
        return f"of the type {certificate.public_key_algorithm_oid.dotted_string}"
    if isinstance(key, RSAPublicKey):
        if key.public_numbers().e < _LEAST_EXPONENT:
            return f"RSA with an exponent below {_LEAST_EXPONENT}"
        return f"RSA of {key.key_size} bits"
    if isinstance(key, EllipticCurvePublicKey):
        return f"ECDSA over {key.curve.name}"
    return type(key).__name__.removeprefix("_").removesuffix("PublicKey")


class _PassphraseError(Exception):
    """OpenSSL asked for one."""


def _no_passphrase() -> str:
    raise _PassphraseError


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
