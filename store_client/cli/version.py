"""`moonpool version`."""

from __future__ import annotations

from moonpool.store_client.cli.options import AsJson


def version(as_json: AsJson = False) -> None:
    """Show the versions of the program, its protocol and its stored format."""
    import moonpool
    from moonpool.schemas.framing import PROTOCOL_VERSION
    from moonpool.schemas.keyspace import FORMAT_VERSION
    from moonpool.store_client.cli.output import print_json, write

    if as_json:
        print_json({"moonpool": moonpool.__version__, "protocol": PROTOCOL_VERSION, "format": FORMAT_VERSION})
    else:
        write(
            f"moonpool {moonpool.__version__} (protocol {PROTOCOL_VERSION}, stored format {FORMAT_VERSION})\n"
        )
