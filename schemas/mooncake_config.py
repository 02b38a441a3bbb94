"""The JSON file at MOONCAKE_CONFIG_PATH, read as it was written for Mooncake Store, as ClientSettings.

master_server_address  host:port, several with commas between, or the etcd that knows them: etcd://a;b
global_segment_size    bytes or "4GB": what this process contributes through a node of its own
mode                   embedded, or standalone-store: contributes nothing
tenant_id              the tenant
protocol               tcp, or rdma: where rdma isn't there yet, tcp serves
metadata_server, device_name, local_hostname, local_buffer_size, enable_offload
                       read and not needed: there is no second service, and no client buffer to size

Fields of ClientSettings may stand in it too and win. Any other key is named once in the log, and ignored: the
file belongs to another program as well.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.config_load import build, nearest, read_table
from moonpool.schemas.errors import ConfigError
from moonpool.schemas.masters import SCHEME
from moonpool.schemas.units import parse_size

CONFIG_PATH_VARIABLE = "MOONCAKE_CONFIG_PATH"
MODES = ("embedded", "standalone-store")
PROTOCOLS = ("tcp", "rdma")
READ = frozenset({"master_server_address", "global_segment_size", "mode", "tenant_id", "protocol"})
IGNORED = frozenset(
    {"metadata_server", "device_name", "local_hostname", "local_buffer_size", "enable_offload"}
)
DEFAULT_PORT = 50051

log = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()


def parse_master_address(text: str, source: str) -> str:
    """Reads "host:port", "host" (Mooncake's default port), several of them with commas between, or
    "etcd://a:2379;b:2379", as our setting `master`. Raises ConfigError."""
    if text.startswith(SCHEME):
        endpoints = [part.strip() for part in text.removeprefix(SCHEME).split(";") if part.strip()]
        if not endpoints:
            raise _bad(source, "master_server_address", text, "etcd://host:port;host:port")
        return SCHEME + ";".join(endpoints)
    return ",".join(_host_and_port(part.strip(), source) for part in text.split(","))


def _host_and_port(text: str, source: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    number = int(port) if port.isascii() and port.isdigit() else 0
    if "/" in host or not host or any(c.isspace() for c in host) or not 0 < number < 65536:
        raise _bad(source, "master_server_address", text, "host:port")
    return f"{host}:{number}"


def load_mooncake_config(
    path: Path | None = None, environment: Mapping[str, str] | None = None
) -> ClientSettings:
    """ClientSettings from the file at `path`, else at MOONCAKE_CONFIG_PATH. Raises ConfigError."""
    if path is None:
        named = (os.environ if environment is None else environment).get(CONFIG_PATH_VARIABLE, "")
        if not named:
            raise ConfigError(
                source="environment", field=CONFIG_PATH_VARIABLE, problem="isn't set; name a JSON file"
            )
        path = Path(named)
    return client_settings(read_table(path), str(path))


def client_settings(table: Mapping[str, object], source: str) -> ClientSettings:
    """ClientSettings from the file's table. Raises ConfigError naming the key, its value and what is allowed."""
    values: dict[str, object] = {}
    if "master_server_address" in table:
        address = _text(table, "master_server_address", source)
        values["master"] = parse_master_address(address, source)
    if "global_segment_size" in table:
        values["segment_size"] = _size(table, "global_segment_size", source)
    if "local_buffer_size" in table:
        _size(table, "local_buffer_size", source)
    if _choice(table, "mode", MODES, source) == "standalone-store":
        values["segment_size"] = 0
    if _choice(table, "protocol", PROTOCOLS, source) == "rdma":
        _warn_once(source, "protocol", "rdma isn't there yet; shm and tcp are used")
    if table.get("tenant_id"):
        values["tenant"] = _text(table, "tenant_id", source)
    own = {name: table[name] for name in ClientSettings.model_fields if name in table}
    for name in table.keys() - READ - IGNORED - own.keys():
        guess = nearest(name, [*READ, *IGNORED, *ClientSettings.model_fields])
        hint = f"; did you mean {guess}?" if guess else ""
        _warn_once(source, name, f"is not a key that Moonpool reads; it is ignored{hint}")
    return build(ClientSettings, values | own, source)


def _text(table: Mapping[str, object], name: str, source: str) -> str:
    value = table[name]
    if not isinstance(value, str) or not value:
        raise _bad(source, name, value, "text")
    return value


def _size(table: Mapping[str, object], name: str, source: str) -> int:
    try:
        size = parse_size(table[name])
    except ValueError:
        size = -1
    if size < 0:
        raise _bad(source, name, table[name], 'bytes, or text such as "4GB"')
    return size


def _choice(table: Mapping[str, object], name: str, choices: tuple[str, ...], source: str) -> str:
    value = table.get(name, choices[0])
    if value not in choices:
        raise _bad(source, name, value, ", ".join(choices))
    return str(value)


def _bad(source: str, name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(source=source, field=name, problem=f"is {value!r}; allowed: {allowed}")


def _warn_once(source: str, name: str, problem: str) -> None:
    if (source, name) not in _warned:
        _warned.add((source, name))
        log.warning("%s: %s: %s", source, name, problem)
