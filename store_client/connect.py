"""Which transport serves a node: shm on its host, else tcp, with staging in front where it is needed. The transfer
engine where it is asked for and open."""

from __future__ import annotations

import logging
import threading

import msgspec

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError, TransferFailed
from moonpool.schemas.messages import Hello, NodeInfo
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.transports.base import SpecOf, Transport
from moonpool.store_client.transports.engine.access import EngineAccess
from moonpool.store_client.transports.engine.address import EngineAddress, host_towards
from moonpool.store_client.transports.engine.engine import open_engine
from moonpool.store_client.transports.engine.transport import EngineTransport
from moonpool.store_client.transports.shm import ShmTransport, same_host
from moonpool.store_client.transports.staged import StagedTransport
from moonpool.store_client.transports.staging import Staging
from moonpool.store_client.transports.tcp import TcpTransport

log = logging.getLogger(__name__)

LOOPBACK = ("127.", "[::1]", "localhost:")


class Connector:
    """Makes transports with one client's settings, copier and staging memory."""

    def __init__(
        self,
        settings: ClientSettings,
        hello: Hello,
        copier: DeviceCopier,
        staging: Staging,
        spec_of: SpecOf,
        credentials: Credentials,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._hello = hello
        self._copier = copier
        self._staging = staging
        self._spec_of = spec_of
        self._engine_lock = threading.Lock()
        self._engine: EngineAccess | None = None

    def connect(self, info: NodeInfo) -> Transport:
        """A transport to that node. Raises TransferFailed where no way is open."""
        wanted = self._settings.transport
        if wanted == "mooncake":
            try:
                return self._over_engine(info)
            except (MoonpoolError, OSError) as error:
                log.warning("node %s is used without transport mooncake: %s", info.node, error)
        if wanted != "tcp" and same_host(info):
            try:
                return ShmTransport(
                    info, self._hello, self._settings.run_dir, self._copier, self._spec_of, self._credentials
                )
            except MoonpoolError as error:
                if wanted == "shm":
                    raise
                log.warning("node %s is on this host, but is used over tcp: %s", info.node, error)
        if wanted == "shm" or not info.data_address:
            raise TransferFailed(peer=info.node, reason=f"transport {wanted!r} finds no way to {info.host}")
        hello = msgspec.structs.replace(self._hello, role="data")
        tcp = TcpTransport(info, hello, self._settings.lanes, self._spec_of, self._credentials)
        if tcp.lands_late or self._copier.device:
            return StagedTransport(tcp, self._copier, self._staging)
        return tcp

    def close(self) -> None:
        """Frees what the transports shared. They are closed."""
        if self._engine is not None:
            self._engine.close()

    def _over_engine(self, info: NodeInfo) -> Transport:
        """Raises MoonpoolError, OSError."""
        if not info.engine_address:
            raise TransferFailed(
                peer=info.node, reason="its engine_protocol is empty, or could not be had there"
            )
        theirs = EngineAddress.parse(info.engine_address)
        devices = self._settings.engine_devices
        with self._engine_lock:
            if self._engine is None:
                engine = open_engine(theirs.protocol, host_towards(theirs.session), devices)
                self._engine = EngineAccess(engine, self._copier)
            ours = self._engine.engine.address
            far = not theirs.session.startswith(LOOPBACK)
            if ours.protocol != theirs.protocol or (far and ours.session.startswith(LOOPBACK)):
                # An engine keeps the name that it was made with: what the first node sees this host as.
                raise TransferFailed(
                    peer=info.node, reason=f"it is at {theirs}, this process's engine at {ours}"
                )
        return EngineTransport(info, self._hello, self._engine, self._spec_of, self._credentials)
