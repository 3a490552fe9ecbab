"""Authorities and certificates for tests, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

_SIGNED = {
    "server": ("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth", 1),
    "expired": ("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth", -1),
    "elsewhere": ("subjectAltName=DNS:elsewhere.example.com\nextendedKeyUsage=serverAuth", 1),
    "client": ("subjectAltName=DNS:alice\nextendedKeyUsage=clientAuth", 1),
}


def make(directory: Path) -> None:
    """Make the authorities `ca` and `other`, and certificates of the first.

    Each is a NAME.pem with its NAME.key: `server` and `expired` for 127.0.0.1,
    `elsewhere` for another name, and alice's, `client`.
    """
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs openssl to make certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run([program, *arguments], cwd=directory, check=True, capture_output=True)

    for ca in ("ca", "other"):
        names = ("-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
        openssl("req", "-x509", *_CURVE, *names, "-days", "1")
    for name, (extension, days) in _SIGNED.items():
        (directory / f"{name}.ext").write_text(extension)
        asking = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/O=research/CN=alice")
        openssl("req", *_CURVE, *asking)
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", str(days))
        files = ("-in", f"{name}.csr", "-extfile", f"{name}.ext", "-out", f"{name}.pem")
        openssl("x509", "-req", *files, *signing)
