"""`python -m moonpool.master`: a master without the CLI around it, one flag for each of MasterSettings."""

from __future__ import annotations

import argparse
import logging
import sys

import pydantic

from moonpool.master.app import run_master
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import MoonpoolError


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m moonpool.master", description=__doc__)
    for name, field in MasterSettings.model_fields.items():
        # MasterSettings itself checks and converts: a value reads the same here and in a settings file.
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            default=argparse.SUPPRESS,
            help=(field.description or "").replace("%", "%%"),
        )
    flags = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run_master(MasterSettings(**flags))
    except (MoonpoolError, pydantic.ValidationError) as error:
        print(f"moonpool master: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
