"""`python -m moonpool.master`: a master without the CLI around it."""

from __future__ import annotations

import argparse
import logging
import sys

from moonpool.master.app import run_master
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import MoonpoolError


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m moonpool.master", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=50051, help="0 picks a free one")
    parser.add_argument("--shards", type=int, default=1)
    flags = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run_master(MasterSettings(host=flags.host, port=flags.port, shards=flags.shards))
    except MoonpoolError as error:
        print(f"moonpool master: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
