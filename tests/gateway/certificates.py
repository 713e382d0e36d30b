"""An authority of the tests' own, and certificates that it signs."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from transformer_serving.contract.replacement import replace_file

PrivateKey = (
    ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)  # fmt: skip
_DAY = timedelta(days=1)
_NOTHING = dict.fromkeys(
    ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
     "key_agreement", "encipher_only", "decipher_only"), False,
)  # fmt: skip
_SIGNS = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **_NOTHING)


@dataclass(frozen=True)
class Pair:
    """Files in PEM."""

    cert: Path
    key: Path

    def gateway(self) -> tuple[str, str]:
        """As options of the gateway."""
        return f"--tls-cert={self.cert}", f"--tls-key={self.key}"


class Authority:
    """Its own certificate lies in `cert`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("the tests' authority")
        # Python 3.13 takes no certificate without it.
        public = self._key.public_key()
        self._signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
        made = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert = folder / "authority.pem"
        self.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, host: str = "127.0.0.1", key: PrivateKey | None = None) -> Pair:
        """A pair named NAME.pem and NAME-key.pem, in the place of one that lay there."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        address = x509.IPAddress(ipaddress.ip_address(host))
        made = (
            _builder(_name(name), self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(self._signer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}-key.pem")
        replace_file(pair.key, _pem(key))
        replace_file(pair.cert, made.public_bytes(serialization.Encoding.PEM).decode())
        return pair

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Trusts this authority alone, and shows the pair."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context


def serial(raw: bytes | None) -> int:
    """A certificate's, which ssl shows in DER."""
    assert raw is not None
    return x509.load_der_x509_certificate(raw).serial_number


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key: PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
