"""`moonpool events-key`: a CURVE key pair for KV events."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson


def events_key(
    file: Annotated[Path, typer.Argument(help="Where the secret key goes; only its owner may read it.")],
    as_json: AsJson = False,
) -> None:
    """Make a key pair for KV events: the secret key goes to FILE, the public one is printed."""
    from moonpool.schemas.errors import ConfigError, NotSupported
    from moonpool.store_client.cli.output import print_json, write

    try:
        import zmq
    except ImportError:
        raise NotSupported(what="events-key", reason="pyzmq is not installed (extra `master`)") from None
    public, secret = (key.decode() for key in zmq.curve_keypair())
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(
            source="command line", field="FILE", problem=f"{file} can't be made: {error.strerror}"
        ) from None
    with os.fdopen(descriptor, "w") as stream:
        stream.write(secret + "\n")
    if as_json:
        print_json({"secret_file": str(file), "public_key": public})
    else:
        write(f"{public}\n")
