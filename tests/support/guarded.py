"""Tokens and certificates for servers that demand them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import trustme

TOKENS = {name: f"the-token-of-{name}-0123456789" for name in ("red", "blue", "node", "admin", "reader")}
"""By name: engines of the tenants red and blue, a node, an admin, and a reader of red."""

ENTRIES = [
    {"name": "red", "token": TOKENS["red"], "tenant": "red", "role": "client"},
    {"name": "blue", "token": TOKENS["blue"], "tenant": "blue", "role": "client"},
    {"name": "node", "token": TOKENS["node"], "role": "node"},
    {"name": "admin", "token": TOKENS["admin"], "role": "admin"},
    {"name": "reader", "token": TOKENS["reader"], "tenant": "red", "role": "reader"},
]


def write_tokens(path: Path, entries: Sequence[dict[str, str]] = ENTRIES) -> Path:
    """The way rotation should be done: a new file in the place of the old one."""
    fresh = path.with_suffix(".fresh")
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(list(entries)))
    return fresh.rename(path)


class Certificates:
    """A CA, and a certificate for this host, as files."""

    def __init__(self, folder: Path, name: str = "pool") -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self.ca = str(folder / f"{name}-ca.pem")
        self.cert = str(folder / f"{name}.pem")
        self.key = str(folder / f"{name}-key.pem")
        self._authority.cert_pem.write_to_path(self.ca)
        self.renew()

    def renew(self, *names: str) -> str:
        """A new certificate in the place of the old one. Returns its serial number as the peer sees it."""
        made = self._authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
        key = Path(self.key)
        key.touch(mode=0o600)
        key.write_bytes(made.private_key_pem.bytes())
        Path(self.cert).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return self.cert

    @property
    def mutual(self) -> dict[str, str]:
        """Settings of a server or client with a certificate of its own."""
        return {"tls_ca": self.ca, "tls_cert": self.cert, "tls_key": self.key}

    @property
    def checking(self) -> dict[str, str]:
        """Settings of a client without one."""
        return {"tls_ca": self.ca}
