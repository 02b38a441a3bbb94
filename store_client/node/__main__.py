"""`python -m moonpool.store_client.node`: a node without the CLI around it, one flag for each of NodeSettings.

For programs that start a node of their own; people use `moonpool node`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

import pydantic

from moonpool.schemas.config import NodeSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.store_client.node.app import run_node


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m moonpool.store_client.node", description=__doc__)
    for name, field in NodeSettings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        # NodeSettings itself checks and converts: a value reads the same here and in a settings file.
        parser.add_argument(
            flag, default=argparse.SUPPRESS, help=(field.description or "").replace("%", "%%")
        )
    parser.add_argument("--ready-file", default="", help="gets the node's addresses as JSON once it serves")
    parser.add_argument("--forget", action="store_true", help="remove the segment at the end")
    parser.add_argument("--log-level", default="INFO", help="DEBUG, INFO, WARNING or ERROR")
    flags = vars(parser.parse_args())
    logging.basicConfig(
        level=flags.pop("log_level"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    ready_file, forget = flags.pop("ready_file"), flags.pop("forget")
    # Secrets come by the environment: everybody can read a command line.
    for name in ("token", "token_file", "tokens_file"):
        if value := os.environ.get(f"MOONPOOL_NODE_{name.upper()}"):
            flags.setdefault(name, value)
    try:
        run_node(NodeSettings(**flags), ready_file, forget=forget)
    except (MoonpoolError, pydantic.ValidationError) as error:
        print(f"moonpool node: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
