"""The files of TLS at the front, looked at before they are used.

Tested by tests/gateway/test_tls.py.
"""

from __future__ import annotations

import base64
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import PublicKeyAlgorithmOID

# Of ring 0.17, which Granian's TLS is built with: OpenSSL knows more, and a worker would end.
_KEY_TYPES = (
    "RSA of 2048 bits", "RSA of 3072 bits", "RSA of 4096 bits", "ECDSA over secp256r1",
    "ECDSA over secp384r1", "Ed25519",
)  # fmt: skip
_LEAST_EXPONENT = 65_537
# The names of the curves in DER.
_CURVES = {
    "secp256r1": bytes.fromhex("06082a8648ce3d030107"),
    "secp384r1": bytes.fromhex("06052b81040022"),
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# What OpenSSL reads as certificates too, and Granian passes over.
_OTHER_CERTIFICATE = re.compile(rb"^-----BEGIN ((?:TRUSTED|X509) CERTIFICATE)-----", re.MULTILINE)
_CERTIFICATE = re.compile(rb"^-----BEGIN CERTIFICATE-----", re.MULTILINE)
_PRIVATE_KEY = re.compile(rb"-----BEGIN (?:EC )?PRIVATE KEY-----(.+?)-----END", re.DOTALL)


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
        try:
            self._check()
        except OSError as error:
            # What OpenSSL cannot read is one too; and a renewal may take a file away for a moment.
            raise self._no_pair(error) from None

    def _check(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_pair(context)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ValueError(
                    f"{self.client_ca} holds no certificates: {_reason(error)}"
                ) from None
            _check_certificates(self.client_ca, self.client_ca.read_bytes())
        certificates, key = self.cert.read_bytes(), self.key.read_bytes()
        _check_certificates(self.cert, certificates)
        _check_beginning(self.key, key)
        self._check_leaf(certificates, key)

    def _load_pair(self, context: ssl.SSLContext) -> None:
        try:
            # Asked for a passphrase, OpenSSL would wait at the terminal.
            context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        except _PassphraseError:
            raise ValueError(
                f"{self.key} asks for a passphrase; write it without one: "
                "openssl pkey -in KEY -out NEW_KEY"
            ) from None

    def _check_leaf(self, certificates: bytes, key: bytes) -> None:
        try:
            leaf = x509.load_pem_x509_certificate(certificates)
        except x509.InvalidVersion as error:
            # It is counted from 0 there.
            raise self._wrong_version(error.parsed_version + 1) from None
        except ValueError as error:
            raise self._no_pair(error) from None
        if leaf.version is x509.Version.v1:
            raise self._wrong_version(1)
        if (kind := _key_type(leaf)) not in _KEY_TYPES:
            raise ValueError(
                f"{self.key} is {kind}, which TLS here cannot use; it takes {', '.join(_KEY_TYPES)}"
            )
        self._check_curve(leaf, key)

    def _no_pair(self, error: Exception) -> ValueError:
        return ValueError(
            f"{self.cert} and {self.key} are no certificate and its key: {_reason(error)}"
        )

    def _wrong_version(self, version: int) -> ValueError:
        return ValueError(
            f"{self.cert} is a certificate of X.509 version {version}, which TLS here cannot use; "
            "sign one of version 3: openssl x509 -req ... -extfile FILE"
        )

    def _check_curve(self, leaf: x509.Certificate, key: bytes) -> None:
        """OpenSSL also reads a curve that is written out, and a point that is shortened or to be
        worked out; ring knows a curve by its name alone, and takes the point as it is.
        """
        public = leaf.public_key()
        if not isinstance(public, EllipticCurvePublicKey):
            return
        point = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        written = _decoded(key)
        if _CURVES[public.curve.name] not in written or point not in written:
            raise ValueError(
                f"{self.key} lacks its curve's name or its whole public half, without which TLS "
                "here cannot use it; write it with a named curve: openssl ec -in KEY "
                "-param_enc named_curve -conv_form uncompressed -out NEW_KEY"
            )
        whole = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if whole not in leaf.tbs_certificate_bytes:
            raise ValueError(
                f"{self.cert} lacks its curve's name or its whole public key, without which TLS "
                f"here cannot use it; sign a new one for {self.key}"
            )


def _check_certificates(path: Path, raw: bytes) -> None:
    """Of what OpenSSL takes for certificates in PEM, Granian must see each; with none it aborts."""
    _check_beginning(path, raw)
    if other := _OTHER_CERTIFICATE.search(raw):
        raise ValueError(
            f"{path} has a {other[1].decode()}, which TLS here cannot read; write each such one "
            "by itself, as a plain one: openssl x509 -in FILE -out NEW_FILE"
        )
    if _CERTIFICATE.search(raw) is None:
        raise ValueError(
            f"{path} holds no certificates: no line begins -----BEGIN CERTIFICATE-----"
        )


def _check_beginning(path: Path, raw: bytes) -> None:
    """OpenSSL skips the mark, as some editors write it; with it Granian knows no first line."""
    if raw.startswith(_BYTE_ORDER_MARK + b"-----BEGIN"):
        raise ValueError(
            f"{path} begins with a byte order mark, with which TLS here cannot read it; write it "
            "without one: tail -c +4 FILE > NEW_FILE"
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


def _decoded(key: bytes) -> bytes:
    """The first private key of a file in PEM, which is the one that is used."""
    found = _PRIVATE_KEY.search(key)
    return b"" if found is None else base64.b64decode(found[1])


class _PassphraseError(Exception):
    """OpenSSL asked for one."""


def _no_passphrase() -> str:
    raise _PassphraseError


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
