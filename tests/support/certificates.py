"""Certificates of an authority made for a test."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates of 127.0.0.1, or of other names; all files lie in a folder.

    Attributes:
        ca: the file of its own certificate.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = _signed(name, self._key, name, self._key, [])
        self.ca = folder / f"{name}-ca.pem"
        self.ca.write_bytes(_pem(self._certificate))

    def certificate(
        self, owner: str, *hosts: str, password: bytes | None = None, valid_hours: int = 24
    ) -> Path:
        """The file of a new certificate and its key; by default of 127.0.0.1 and localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = list(hosts or ("127.0.0.1", "localhost"))
        certificate = _signed(owner, key, self._name, self._key, names, valid_hours=valid_hours)
        cipher: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            cipher = serialization.BestAvailableEncryption(password)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher
        )
        path = self._folder / f"{self._name}-{owner}.pem"
        path.write_bytes(private + _pem(certificate))
        return path


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _signed(
    owner: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    hosts: list[str],
    *,
    valid_hours: int = 24,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, owner)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(hours=valid_hours))
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
        # Python 3.13 refuses certificates without these, as RFC 5280 says.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(_usage(is_authority=not hosts), critical=True)
    )
    if hosts:
        names = [
            x509.IPAddress(ipaddress.ip_address(host))
            if host.replace(".", "").isdigit()
            else x509.DNSName(host)
            for host in hosts
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
