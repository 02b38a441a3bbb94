"""Hosts on paper: network namespaces on one bridge, whose links tests cut. Needs root."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

NOBODY = "02:00:00:00:00:01"
"""A hardware address that no host has: frames to it are lost without a word, as behind a dead switch."""


def possible() -> bool:
    """Whether this process may make namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"mp{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode:
        return False
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return True


class Network:
    """`with Network(["a", "b"]) as network:`. The calling process is a host of it too, whose links stay."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._prefix = f"mp{os.getpid()}"
        self._subnet = f"10.213.{os.getpid() % 250 + 1}"
        self._places = {host: place for place, host in enumerate(hosts, 2)}

    def __enter__(self) -> Self:
        _remove_what_was_left()
        bridge = f"{self._prefix}-br"
        try:
            _ip(f"link add {bridge} type bridge", f"addr add {self._subnet}.1/24 dev {bridge}")
            _ip(f"link set {bridge} up")
            for host in self._places:
                space, outer = self._space(host), self._outer(host)
                _ip(f"netns add {space}", f"link add {outer} type veth peer name eth0 netns {space}")
                _ip(f"link set {outer} master {bridge} up")
                inside = [f"addr add {self.address(host)}/24 dev eth0", "link set eth0 up", "link set lo up"]
                _ip(*inside, space=space)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for host in self._places:
            subprocess.run(["ip", "link", "delete", self._outer(host)], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "delete", self._space(host)], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", f"{self._prefix}-br"], check=False, capture_output=True)

    def address(self, host: str) -> str:
        """IPv4."""
        return f"{self._subnet}.{self._places[host]}"

    def command(self, host: str) -> list[str]:
        """What a command line begins with to run there. The process keeps its id and its files."""
        return ["ip", "netns", "exec", self._space(host)]

    def isolate(self, host: str) -> None:
        """Nothing reaches it, and nothing of it reaches anybody."""
        _ip(f"link set {self._outer(host)} down")

    def cut(self, one: str, other: str) -> None:
        """What `one` sends to `other` is lost. The other direction works."""
        _ip(
            f"neigh replace {self.address(other)} lladdr {NOBODY} dev eth0 nud permanent",
            space=self._space(one),
        )

    def mend(self) -> None:
        """Every link is as it was."""
        for host in self._places:
            self.mend_host(host)
            for other in self._places:
                self.mend_cut(host, other)

    def mend_host(self, host: str) -> None:
        """The end of `isolate`."""
        _ip(f"link set {self._outer(host)} up")

    def mend_cut(self, one: str, other: str) -> None:
        """The end of `cut`."""
        words = ["ip", "-n", self._space(one), "neigh", "delete", self.address(other), "dev", "eth0"]
        subprocess.run(words, check=False, capture_output=True)

    def _space(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _outer(self, host: str) -> str:
        return f"{self._prefix}v{self._places[host]}"


def _ip(*commands: str, space: str = "") -> None:
    words = ["ip", *(["-n", space] if space else []), "-batch", "-"]
    ended = subprocess.run(words, input="\n".join(commands), check=False, capture_output=True, text=True)
    assert ended.returncode == 0, f"{commands}: {ended.stderr}"


def _remove_what_was_left() -> None:
    """By a test process that was killed."""
    for space in Path("/run/netns").glob("mp*-*"):
        found = re.fullmatch(r"mp(\d+)-.*", space.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            subprocess.run(["ip", "netns", "delete", space.name], check=False, capture_output=True)
            with contextlib.suppress(OSError):
                subprocess.run(["ip", "link", "delete", f"mp{found[1]}-br"], check=False, capture_output=True)
