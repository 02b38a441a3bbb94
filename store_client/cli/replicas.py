"""`moonpool replicas`: how many copies the blocks of a keyspace should have."""

from __future__ import annotations

from typing import Annotated

import typer

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, open_pool


def replicas(
    keyspace: Annotated[
        str, typer.Argument(help="Its digest, as `moonpool ls` prints it: the first digits do.")
    ],
    copies: Annotated[int, typer.Argument(help="Copies, on so many hosts where there are: 1 to 4.")],
    master: Master = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Set how many copies the blocks of a keyspace should have. They are made in the background, from node to node."""
    from moonpool.store_client.cli.keys import find_keyspace
    from moonpool.store_client.cli.output import print_json, progress, write

    with (
        open_pool(master=master, config=config, assignments=assignments) as client,
        progress("asking the master"),
    ):
        spec = find_keyspace(client, keyspace)
        changed = client.admin.set_replicas(spec.digest(), copies)
    if as_json:
        print_json({"keyspace": spec.digest().hex(), "replicas": copies, "changed": changed})
        return
    write(f"blocks of {spec.name} should have {copies} copies{'' if changed else ' (it was so already)'}\n")
