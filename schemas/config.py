"""One frozen settings model a process kind. schemas/config_load.py fills them from files, environment and flags.

The field descriptions are the settings table of the docs: a test checks that each one is listed there.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from moonpool.schemas.keyspace import DEFAULT_TENANT
from moonpool.schemas.units import parse_size

MASTER = "host:port of a master, or of several with commas between; or etcd://host:port;host:port/cluster"

Bytes = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
"""A size: a number of bytes, or text such as "4GB" or "512MiB"."""


TokensFile = Annotated[
    str, Field(description="file of the tokens that are let in (docs/security.md); empty: everybody is")
]
Token = Annotated[str, Field(repr=False, description="bearer token that is shown to servers")]
TokenPath = Annotated[str, Field(description="file that holds the token, read anew for each connection")]
TlsCert = Annotated[str, Field(description="certificate chain to show, a PEM file")]
TlsKey = Annotated[str, Field(description="its private key, a PEM file")]
TlsVerifyHost = Annotated[
    bool, Field(description="servers' certificates must name the address that is connected to")
]
EtcdUser = Annotated[str, Field(description="user to sign in to etcd as; empty: none")]
EtcdPasswordFile = Annotated[str, Field(description="file that holds that user's password")]
EtcdCa = Annotated[
    str, Field(description="PEM file of the authority that etcd's certificates must be of; empty: no TLS")
]
EtcdCert = Annotated[str, Field(description="PEM file of the certificate to show to etcd")]
EtcdKey = Annotated[str, Field(description="PEM file of that certificate's key")]
Tracing = Annotated[
    bool,
    Field(
        description="spans of the calls of clients that make some, sent to OpenTelemetry's collector (extra `otel`)"
    ),
]

Insecure = Annotated[
    bool, Field(description="listen beyond this host with neither tokens nor certificates of clients")
]


class Settings(BaseModel):
    """Base: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MasterSettings(Settings):
    """`moonpool master`."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(50051, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    advertise: str = Field(
        "",
        description="host or host:port that clients and nodes reach this master by (default: what it listens on)",
    )
    shards: int = Field(
        0,
        ge=0,
        le=512,
        description="parts of the index, fixed when a cluster is made; 0: as it was made, new ones with 16 in etcd, else 1",
    )
    lease_s: float = Field(
        3.0, ge=1, le=60, description="with etcd: silence after which others take over a master's shards"
    )
    near_door: bool = Field(
        True,
        description="whether clients and nodes of the master's own host go on through a Unix socket, once they have reached "
        "its port; with TLS they never do",
    )
    connections_max: int = Field(4096, ge=1, description="connections served at once")
    inflight_max: int = Field(256, ge=1, description="requests of one connection handled at once")
    heartbeat_s: float = Field(1.0, gt=0, description="how often nodes report that they live")
    suspect_after_s: float = Field(3.0, gt=0, description="silence after which a node is not matched")
    lost_after_s: float = Field(30.0, gt=0, description="silence after which a node's blocks are forgotten")
    copy_bytes_per_s: Bytes = Field(
        256 << 20,
        description="bytes a second that one node is told to copy from other nodes, and as many to give, at most "
        "(replicas, drains, warm-up, hot prefixes); 0: no copies are made",
    )
    hot_hits_per_min: int = Field(
        600,
        ge=0,
        description="hits a minute for each of which what prompts share gets one more copy, on another host; 0: never",
    )
    events_host: str = Field("127.0.0.1", description="address that KV events are published at")
    events_port: int = Field(
        0,
        ge=0,
        le=65534,
        description="ZMQ port of KV events, replays at the next port; 0: none are published",
    )
    events_int_hashes: bool = Field(
        True,
        description="block hashes in KV events as 64-bit numbers, as vLLM writes them unless told otherwise",
    )
    events_key: str = Field(
        "",
        description="file with this master's secret CURVE key for KV events (`moonpool events-key`); empty: they are sent as plain text to whoever asks",
    )
    events_clients: str = Field(
        "",
        description="file with the public CURVE keys of those who may read KV events, one a line; read again when it changes",
    )
    http_host: str = Field("127.0.0.1", description="address that the REST interface listens on")
    http_port: int = Field(
        0, ge=0, le=65535, description="port of the REST interface and of /metrics; 0: none (serve picks one)"
    )
    store: str = Field(
        "",
        description="where hard state is kept: memory, file:PATH or etcd://HOST:PORT;HOST:PORT; empty: memory, "
        "and with serve a file",
    )
    cluster: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="the cluster's name, a prefix of all keys in etcd",
    )
    etcd_user: EtcdUser = ""
    etcd_password_file: EtcdPasswordFile = ""
    etcd_ca: EtcdCa = ""
    etcd_cert: EtcdCert = ""
    etcd_key: EtcdKey = ""
    log_every_s: float = Field(
        5.0,
        ge=0,
        description="how often what has changed in the index is written to the store, so that a new owner can answer at once; 0: never",
    )
    store_timeout_s: float = Field(3.0, gt=0, description="how long a request waits for the store at most")
    tokenizers_dir: str = Field(
        "",
        description="folder of tokenizers that prefixes given as text may name (NAME/tokenizer.json); empty: none",
    )
    tokens_file: TokensFile = ""
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""
    quotas: str = Field(
        "",
        description="what tenants may store, for example red=10GB,blue=500MB; `moonpool tenant` changes it",
    )
    tls_ca: str = Field("", description="CA that clients' certificates are checked against, a PEM file")
    insecure: Insecure = False
    dashboard: bool = Field(True, description="serve the dashboard at /ui of the HTTP port")
    tracing: Tracing = False


class NodeSettings(Settings):
    """`moonpool node`."""

    master: str = Field("127.0.0.1:50051", description=MASTER)
    name: str = Field(
        "node", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="names the segment to adopt again"
    )
    size: Bytes = Field(1 << 30, description="DRAM to contribute, for example 4GB")
    host: str = Field("127.0.0.1", description="address that the RPC and data ports listen on")
    port: int = Field(
        0, ge=0, le=65535, description="RPC port for clients of other hosts; 0 picks a free one"
    )
    data_port: int = Field(0, ge=0, le=65535, description="port of the tcp transport; 0 picks a free one")
    advertise: str = Field("", description="address that other hosts reach this one by (default: host)")
    segment_dir: str = Field("/dev/shm", description="where the segment file lies: tmpfs or hugetlbfs")
    run_dir: str = Field("/tmp/moonpool", description="sockets and session locks, one folder a user")
    page_size: Bytes = Field(0, description="bytes of a page; 0 picks up to 64 MiB by the segment's size")
    high_watermark: float = Field(0.95, gt=0, le=1, description="used share at which eviction starts")
    low_watermark: float = Field(0.90, gt=0, le=1, description="used share down to which it goes")
    begin_wait_s: float = Field(0.1, ge=0, description="how long a put waits for space")
    prefault: bool = Field(True, description="touch all memory before serving")
    huge_pages: bool = Field(True, description="lay the segment into huge pages where the kernel can")
    numa_node: int = Field(-1, ge=-1, description="bind the segment's memory to this NUMA node; -1: anywhere")
    checksums: bool = Field(True, description="compute a checksum of each object after its commit")
    lanes_max: int = Field(256, ge=1, description="tcp data connections served at once")
    sessions_max: int = Field(1024, ge=1, description="local writers at once")
    metrics_host: str = Field("127.0.0.1", description="address that /metrics is served at")
    metrics_port: int = Field(0, ge=0, le=65535, description="port of /metrics; 0: none")
    tracing: Tracing = False
    tokens_file: TokensFile = ""
    token: Token = ""
    token_file: TokenPath = ""
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""
    tls_ca: str = Field(
        "", description="CA that the master's and the clients' certificates are checked against, a PEM file"
    )
    tls_verify_host: TlsVerifyHost = True
    etcd_user: EtcdUser = ""
    etcd_password_file: EtcdPasswordFile = ""
    etcd_ca: EtcdCa = ""
    etcd_cert: EtcdCert = ""
    etcd_key: EtcdKey = ""
    insecure: Insecure = False
    engine_protocol: str = Field(
        "",
        pattern=r"^[a-z0-9_]{0,32}$",
        description="opens the door of the mooncake transport: rdma, tcp or another of its protocols; empty: closed",
    )
    engine_devices: str = Field(
        "", description="devices of the transfer engine, for example mlx5_0,mlx5_1; empty: all"
    )


class ClientSettings(Settings):
    """StoreClient, and the client inside the connector."""

    master: str = Field("127.0.0.1:50051", description=MASTER)
    tenant: str = Field(DEFAULT_TENANT, description="whose keyspaces these are")
    token: Token = ""
    token_file: TokenPath = ""
    tls_ca: str = Field(
        "", description="CA that servers' certificates are checked against, a PEM file; turns TLS on"
    )
    tls_cert: TlsCert = ""
    tls_key: TlsKey = ""
    tls_verify_host: TlsVerifyHost = True
    etcd_user: EtcdUser = ""
    etcd_password_file: EtcdPasswordFile = ""
    etcd_ca: EtcdCa = ""
    etcd_cert: EtcdCert = ""
    etcd_key: EtcdKey = ""
    timeout_s: float = Field(2.0, gt=0, description="deadline of a call that names none")
    breaker_retry_s: float = Field(
        1.0, gt=0, description="pause before a failed master or node is asked again"
    )
    tracing: bool = Field(
        False, description="spans of matches, loads and saves for OpenTelemetry (extra `otel`)"
    )
    verify_checksums: bool = Field(True, description="check host-memory reads against the header's checksum")
    transport: Literal["auto", "shm", "tcp", "mooncake"] = Field(
        "auto",
        description="auto: shm on the node's host, else tcp; mooncake: the transfer engine, where a node has it",
    )
    engine_devices: str = Field(
        "", description="devices of the transfer engine, for example mlx5_0,mlx5_1; empty: all"
    )
    lanes: int = Field(2, ge=1, le=16, description="tcp data connections to one node")
    replica_num: int = Field(
        0,
        ge=0,
        le=4,
        description="copies that the blocks of its keyspaces should have, made in the background; 0: as somebody has set it, else 1",
    )
    segment_size: Bytes = Field(0, description="DRAM that this process contributes through a node of its own")
    run_dir: str = Field("/tmp/moonpool", description="session locks, one folder a user")


class ConnectorSettings(Settings):
    """`kv_connector_extra_config` of MoonpoolStoreConnector, beside the client's settings."""

    min_hit_tokens: int = Field(0, ge=0, description="a shorter hit is not worth a load")
    match_timeout_s: float = Field(
        0.5, gt=0, description="a request waits no longer for the answer of the pool"
    )
    load_timeout_s: float = Field(10.0, gt=0, description="a load that takes longer is computed instead")
    save_timeout_s: float = Field(5.0, gt=0, description="a save that takes longer is dropped")
    save_queue_max: int = Field(256, ge=1, description="saves waiting; more are dropped and counted")
    load_queue_max: int = Field(1024, ge=1, description="loads waiting; more are computed instead")
    load_threads: int = Field(2, ge=1, le=16, description="loads under way at once")
    save_threads: int = Field(1, ge=1, le=16, description="saves under way at once")
    save_decode_cache: bool = Field(
        False, description="a kv_consumer saves what it decodes, and loads saves of others"
    )
    enable_lookup: bool = Field(True, description="ask the pool at all; off: a producer only saves")
    shun_s: float = Field(
        30.0, ge=0, description="a block that failed to load is not asked for again so long"
    )
    force_recompute_policy: bool = Field(
        True, description="set kv_load_failure_policy to recompute where it is left at fail"
    )
    cache_prefix: str = Field("", description="separates pools of engines that would share otherwise")
