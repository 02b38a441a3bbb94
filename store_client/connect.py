"""Which transport serves a node: shm on its host, else tcp, with staging in front where it is needed."""

from __future__ import annotations

import logging

import msgspec

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError, TransferFailed
from moonpool.schemas.messages import Hello, NodeInfo
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.transports.base import SpecOf, Transport
from moonpool.store_client.transports.shm import ShmTransport, same_host
from moonpool.store_client.transports.staged import StagedTransport
from moonpool.store_client.transports.staging import Staging
from moonpool.store_client.transports.tcp import TcpTransport

log = logging.getLogger(__name__)


class Connector:
    """Makes transports with one client's settings, copier and staging memory."""

    def __init__(
        self, settings: ClientSettings, hello: Hello, copier: DeviceCopier, staging: Staging, spec_of: SpecOf
    ) -> None:
        self._settings = settings
        self._hello = hello
        self._copier = copier
        self._staging = staging
        self._spec_of = spec_of

    def connect(self, info: NodeInfo) -> Transport:
        """A transport to that node. Raises TransferFailed where no way is open."""
        wanted = self._settings.transport
        if wanted != "tcp" and same_host(info):
            try:
                return ShmTransport(info, self._hello, self._settings.run_dir, self._copier, self._spec_of)
            except MoonpoolError as error:
                if wanted == "shm":
                    raise
                log.warning("node %s is on this host, but is used over tcp: %s", info.node, error)
        if wanted == "shm" or not info.data_address:
            raise TransferFailed(peer=info.node, reason=f"transport {wanted!r} finds no way to {info.host}")
        hello = msgspec.structs.replace(self._hello, role="data")
        tcp = TcpTransport(info, hello, self._settings.lanes, self._spec_of)
        if tcp.lands_late or self._copier.device:
            return StagedTransport(tcp, self._copier, self._staging)
        return tcp
