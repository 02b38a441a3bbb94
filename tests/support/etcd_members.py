"""One etcd of several members."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.etcd_server import EtcdServer


class EtcdMembers:
    """`with EtcdMembers(folder, 3) as etcd:`. `etcd.members` may be killed and started one by one."""

    def __init__(self, folder: Path, count: int, **settings: Any) -> None:
        """`settings`: of EtcdServer, the same for all."""
        self.members = [
            EtcdServer(folder / f"etcd{number}", name=f"etcd{number}", **settings) for number in range(count)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        start_together(self._stack, self.members)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def endpoints(self) -> str:
        """As the settings name them."""
        return ";".join(member.endpoint for member in self.members)

    def leader(self) -> EtcdServer:
        """The member that the others follow."""
        for member in self.members:
            said = member.ask("maintenance/status")
            if said["leader"] == said["header"]["member_id"]:
                return member
        raise AssertionError("no leader")


def start_together(stack: ExitStack, members: Sequence[EtcdServer]) -> None:
    """None is up before most are. `stack` ends them."""
    for member in members:
        member.members = list(members)
        stack.callback(member.end)
        member.launch()
    for member in members:
        member.wait_healthy()
