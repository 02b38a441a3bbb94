"""Runs the blocks of a page in order, as somebody who copies them into a terminal would: one shell, servers in the
background, everything in namespaces of its own, so that default ports and /dev/shm are free and nothing stays behind."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from support.doc_blocks import SHELLS, Block, commands_in

READY = {
    r"etcd ": "ready to serve client requests",
    r"moonpool serve\b": "try: moonpool status",
    r"moonpool (master|node)\b": "listening on",
    r"(\w+=\S+ )*(python -m )?vllm[. ]\S+": "Application startup complete",
    r"kubectl .*port-forward": "Forwarding",
}
"""Commands that run until Ctrl-C, and what they say when they are up."""

PROLOGUE = """
set -euo pipefail
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
mkdir -p -m 1777 /tmp/moonpool && mount -t tmpfs tmpfs /tmp/moonpool
step='the start'
trap 'echo "FAILED: $step" >&2; tail -n 30 "$LOGS"/*.log >&2 2>/dev/null' ERR
up() { # up PID LOG PATTERN
    local end=$((SECONDS + START_TIMEOUT_S))
    until grep -q "$3" "$2"; do
        kill -0 "$1" 2>/dev/null || return 1
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}
"""


class Script:
    """A bash script of a page's blocks. `change`: a command as it is to be run, or None to leave it out."""

    def __init__(self, page: Sequence[Block], change: Callable[[str], str | None]) -> None:
        self.commands = 0
        self._lines = [PROLOGUE]
        self._waits: list[str] = []
        for number, block in enumerate(page):
            if block.language in SHELLS:
                for command in commands_in(block.text):
                    self._command(change(command))
            elif block.language == "python":
                self._then(f"python block {number}", f"python -W error - <<'END'\n{block.text}END")
            elif block.language == "toml":
                file = f'"$LOGS"/{number}.toml'
                self._then(f"toml block {number}", f"cat >{file} <<'END'\n{block.text}END")
                self._then(f"toml block {number}", f"moonpool config check {file}")
        self._then("the end", "true")

    def __str__(self) -> str:
        return "\n".join(self._lines)

    def _command(self, command: str | None) -> None:
        if command is None:
            return
        ready = next((said for pattern, said in READY.items() if re.match(pattern, command)), None)
        if ready is None:
            self._then(command, command)
            return
        self.commands += 1
        name, log = f"server_{self.commands}", f'"$LOGS"/{self.commands}.log'
        self._lines += [f"step={shlex.quote(command)}", f"{command} >{log} 2>&1 & {name}=$!"]
        self._waits.append(f"up ${name} {log} {shlex.quote(ready)}")

    def _then(self, step: str, line: str) -> None:
        """Servers come up side by side, and before the next command that isn't one."""
        self.commands += 1
        self._lines += [*self._waits, f"step={shlex.quote(step)}", line]
        self._waits = []


def run(script: Script, *, cwd: Path, logs: Path, path: Sequence[Path], timeout_s: float) -> str:
    """Runs a script with these folders in front of PATH. Returns what it printed. Raises AssertionError with the
    command that failed."""
    names = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.getuid():
        names += ["--user", "--map-root-user"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MOONPOOL_", "PYTEST_"))
    }
    environment["PATH"] = ":".join([*map(str, path), environment["PATH"], "/sbin", "/usr/sbin"])
    environment |= {"LOGS": str(logs), "START_TIMEOUT_S": str(int(timeout_s * 0.8))}
    environment["XDG_STATE_HOME"] = str(logs / "state")  # no hard state of another page's pool
    process = subprocess.Popen(
        ["unshare", *names, "bash", "-c", str(script)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()  # its namespace of processes, and so everything in it, ends with it
        said, _ = process.communicate()
        raise AssertionError(f"not done after {timeout_s} s:\n{said[-4000:]}") from None
    assert process.returncode == 0, said[-6000:]
    return said
