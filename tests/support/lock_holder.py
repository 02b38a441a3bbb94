"""A process that holds a flock until it dies. Argument: the file. Says "locked" once it has it."""

from __future__ import annotations

import fcntl
import sys
import time

if __name__ == "__main__":
    file = open(sys.argv[1], "w")  # noqa: SIM115 (held for life)
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    time.sleep(600)
