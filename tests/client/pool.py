"""A small pool of real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from support.leaks import no_thread_left
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.store_client import StoreClient

SIZE_BYTES = 96 << 20
TIMEOUT_S = 20.0
BEGIN_WAIT_S = 5.0
PATIENT = ("--suspect-after-s", "60", "--lost-after-s", "120")
"""A master that takes a frozen node for a slow one, and goes on sending clients to it."""

MakeClient = Callable[..., StoreClient]


class Pool:
    """One master, one node, both live. `settings`: of the node."""

    def __init__(self, **settings: object) -> None:
        self._settings = {"size": SIZE_BYTES, "prefault": False, "begin_wait_s": BEGIN_WAIT_S, **settings}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.master = stack.enter_context(MasterProcess(PATIENT))
            self.node = stack.enter_context(NodeProcess(self.master, **self._settings))
            with client_of(self) as client:
                wait_for_nodes(client)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stack.close()


def client_of(pool: Pool, **settings: object) -> StoreClient:
    """A client of that pool, which waits for slow servers."""
    given = {"master": pool.master.address, "timeout_s": TIMEOUT_S, **settings}
    return StoreClient(ClientSettings.model_validate(given))


@contextmanager
def clients(run_dir: Path) -> Iterator[MakeClient]:
    """Makes clients of a pool; closed at the end, when none of their threads may be left."""
    with no_thread_left(0.0), ExitStack() as stack:

        def make(pool: Pool, **settings: object) -> StoreClient:
            return stack.enter_context(client_of(pool, run_dir=str(run_dir), **settings))

        yield make


def wait_for_nodes(client: StoreClient, count: int = 1) -> None:
    """Returns once the master knows that many live nodes."""
    wait_until(lambda: sum(entry.state == 1 for entry in client.cluster_map().nodes) >= count)
