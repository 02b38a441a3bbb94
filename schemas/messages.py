"""Every message on the control plane, one frozen Struct each.

handshake        Hello -> Welcome
client, master   RegisterKeyspace, Probe, Match, Presence, Locate, Renew, PutStart, ReportBad, PutAbandon,
                 Remove, Clear, Pin, Unpin, Drain, GetDrains, Warm, SetReplicas, Describe, DescribeKeyspace, ListKeyspaces, GetClusterMap, GetStatus
node, master     Announce, Report (the ordered stream), Heartbeat, Need;  pushed by the master: Drop, Check, CopyOrder
client, node     OpenSession, RegisterKeyspace, Begin, Commit, PutAhead, Revoke, SessionHeartbeat, PullWrite, PutSmall, GetSmall,
                 ListKeys, GetStatus
any server       Failed answers any request

Columns are packed byte strings (schemas/packed.py): `hashes` is count * hash_bytes long, u32 and u64
columns are little-endian. `keyspace` is always the 16-byte digest. Times are relative and in ms, so that
no two clocks are compared. Nothing here but PutSmall and SmallData holds a payload byte.

Shards (schemas/runs.py): `shards` is a u16 column, one an item that the request names; `shard` is one number. Left
empty (b"", -1) they mean every shard of the master that is asked, which is exact where the cluster has one shard.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from moonpool.schemas.keyspace import KeyspaceSpec

if TYPE_CHECKING:
    View = bytes | memoryview
else:
    View = memoryview
"""Bytes that lie in the message that they came with: they are not copied."""

AVOID_MAX = 64
"""Segments that a reader names as unreadable."""

ITEMS_MAX = 16384
"""Of a list in a request. Checked before a list is read: millions of tiny items would hold a server for long."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base: encoded as an array, its first item the class name."""


class PutAnswer(IntEnum):
    """What put_start says of one block."""

    GO = 0  # write it to the node named beside it
    EXISTS = 1
    BUSY = 2  # somebody else holds the promise to write it
    NO_PARENT = 3  # start again from the run's first block
    NO_NODE = 4  # no live node could take it
    QUOTA = 5  # its tenant is at its quota, and has nothing of its own to give up


class Status(IntEnum):
    """Outcome of one object in a batch that is answered as a whole."""

    OK = 0
    MISSING = 1  # not there, or no longer at the place that was named
    NO_SPACE = 2
    EXISTS = 3
    CORRUPT = 4  # there, and its bytes are not what its header says
    FAILED = 5  # the transfer broke, timed out or was refused
    TOO_LARGE = 6
    BUSY = 7
    NO_PARENT = 8
    GONE = 9  # the grant was taken back before its commit
    QUOTA = 10  # the tenant is at its quota, and nothing of its own could be evicted


# ---------------------------------------------------------------- handshake


class Hello(Message, frozen=True):
    """First frame on every connection. `role`: client, node, data. `host`: who shares memory with the sender."""

    protocol: int
    role: str
    client: str
    tenant: str = "default"
    token: str = ""
    host: str = ""


class Welcome(Message, frozen=True):
    """`server`: master or node. `epoch` of a master; 0 of a node. `version` and `time_ms` (the server's wall clock) are
    for diagnosis: nothing is decided by them. `traces`: requests may name the span that they belong to (schemas/framing.py).
    `near`: a door for peers that have reached its port `near_port` from its own host (store_client/rpc/near.py)."""

    protocol: int
    server: str
    epoch: int
    frame_bytes_max: int
    version: str = ""
    time_ms: int = 0
    traces: bool = False
    near: str = ""
    near_port: int = 0


class Failed(Message, frozen=True):
    """The answer to a request that raised: schemas/errors.py names the code."""

    code: int
    message: str


class Done(Message, frozen=True):
    """The answer where there is nothing to say. `count`: how many objects it concerned."""

    count: int = 0


# ---------------------------------------------------------------- client, master


class RegisterKeyspace(Message, frozen=True):
    """Idempotent: the id is the spec's digest. Also understood by nodes."""

    spec: KeyspaceSpec


class KeyspaceRegistered(Message, frozen=True):
    """Answer to RegisterKeyspace."""

    keyspace: bytes
    shards: int


class ProbedRun(msgspec.Struct, frozen=True, array_like=True):
    """`count` blocks of one run from position `first` on, of which `hashes` names each `stride`-th one and the last."""

    first: int
    count: int
    stride: int
    hashes: bytes


class Probe(Message, frozen=True):
    """Longest ready prefix, as far as some hashes of each run tell. Leases as Match does.

    `sample`: first 8 bytes of all of the chain's hashes whose bits `sample_mask` are zero there (as little-endian u64),
    in order of position. Evictions learn from them; -1: no sample.
    """

    keyspace: bytes
    runs: Annotated[list[ProbedRun], Meta(max_length=ITEMS_MAX)]
    lease_ms: int = 3000
    sample: bytes = b""
    sample_mask: int = -1
    shards: bytes = b""


class Probed(Message, frozen=True):
    """`ready`: how many blocks of each run are ready at least, from its first on; 0 of all behind one that isn't all ready. A
    number that is neither a multiple of the run's stride nor all is exact. `sample_mask`: to be used from now on.

    `follow`: of the first run that isn't all ready, names (as in a sample) of the ready blocks that follow those known, as
    far as one alone follows another. `whole`: whether nothing ready comes after them; else Match tells."""

    ready: list[int]
    sample_mask: int = -1
    follow: bytes = b""
    whole: bool = False


class Match(Message, frozen=True):
    """Longest ready prefix. `runs`: (position of the first hash, packed hashes) in order of position, none
    crossing a run boundary. Leases the deepest ready row of each run for `lease_ms`, without recency."""

    keyspace: bytes
    runs: Annotated[list[tuple[int, bytes]], Meta(max_length=ITEMS_MAX)]
    lease_ms: int = 3000
    shards: bytes = b""


class Matched(Message, frozen=True):
    """`ready`: how many blocks of each run are ready, from its first hash on."""

    ready: list[int]


class Presence(Message, frozen=True):
    """Flat keyspaces: which rows have every rank committed (`rank` < 0), or that one rank."""

    keyspace: bytes
    hashes: bytes
    rank: int = -1
    ttl_ms: int = 3000
    shards: bytes = b""


class Present(Message, frozen=True):
    """`bits`: one byte a hash, 1 or 0."""

    bits: bytes


class RunSlice(msgspec.Struct, frozen=True, array_like=True):
    """Blocks first .. first+count of one run, whose last one is `deepest`."""

    deepest: bytes
    first: int
    count: int


class Locate(Message, frozen=True):
    """Where one rank's shards lie. Chained: `runs`. Flat: `hashes`. `avoid`: segments that the reader couldn't read: of
    several copies another one is named."""

    keyspace: bytes
    rank: int
    runs: Annotated[list[RunSlice], Meta(max_length=ITEMS_MAX)] = []
    hashes: bytes = b""
    shards: bytes = b""
    avoid: Annotated[list[bytes], Meta(max_length=AVOID_MAX)] = []


class Located(Message, frozen=True):
    """Locations in the order asked. `which`: u16 index into `segments`. A generation of 0: not there.
    For chained keyspaces a run that has left is all zeros (match again). `lengths` (u64): payload bytes."""

    segments: list[bytes]
    which: bytes
    slots: bytes
    generations: bytes
    lengths: bytes


class Renew(Message, frozen=True):
    """Raises the lease and the recency of rows (the deepest of each run in use)."""

    keyspace: bytes
    hashes: bytes
    lease_ms: int = 10000
    shards: bytes = b""


class Renewed(Message, frozen=True):
    """`bits`: one byte a hash, 1 where the row is still there and ready."""

    bits: bytes


class PutItem(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive blocks of one rank that somebody wants to write, none crossing a run boundary.
    `parent`: hash before the first (empty at position 0). Flat keyspaces: position 0, no parent, as many as a run has.
    `size_bytes`: bytes of one block's shard (the largest one, where sizes vary). `request_id`, `session_id`: in whose
    name, so that an operator finds what a request has written; may be empty."""

    keyspace: bytes
    rank: int
    position: int
    parent: bytes
    hashes: bytes
    size_bytes: int
    shard: int = 0
    request_id: str = ""
    session_id: str = ""


class PutStart(Message, frozen=True):
    """May these be written, and where? Writes no row: it probes, and keeps an expiring promise a block."""

    items: Annotated[list[PutItem], Meta(max_length=ITEMS_MAX)]
    promise_ms: int = 10000


DIRECT_BYTES = 128 << 20
"""Payload of one direct put: what goes to waste where the objects are in the pool already."""


class PutStarted(Message, frozen=True):
    """One entry of each list an item: `answers` one PutAnswer byte a block, `segments` the segment to write to
    (empty where no block of the item is GO). `direct_ms`: for so long this client may put further objects of that
    keyspace, rank and shard to that segment without asking, `direct_bytes` a call at most; 0, or an
    empty list: it may not."""

    answers: list[bytes]
    segments: list[bytes]
    direct_ms: list[int] = []
    direct_bytes: int = DIRECT_BYTES


class PutAbandon(Message, frozen=True):
    """The promises of these blocks are given back: their writer failed or gave up."""

    keyspace: bytes
    rank: int
    hashes: bytes
    shard: int = -1


class ReportBad(Message, frozen=True):
    """This location didn't hold what it should. Un-readies the block at once; the node is asked to check."""

    keyspace: bytes
    rank: int
    block_hash: bytes
    segment: bytes
    slot: int
    generation: int
    shard: int = -1


class Remove(Message, frozen=True):
    """Removes blocks with all that hangs on them. `force`: leased and pinned ones too.
    Waits up to `wait_ms` for the nodes to have flipped the headers. `rank`: of flat rows this one alone, without
    waiting; its slots that are being written stay. `dry_run`: only says what would be removed, and what skipped."""

    keyspace: bytes
    hashes: bytes
    force: bool = False
    wait_ms: int = 1000
    rank: int = -1
    dry_run: bool = False
    shards: bytes = b""


class Removed(Message, frozen=True):
    """`count`: rows removed. `skipped`: leased or pinned ones. `pending`: nodes that haven't confirmed, or that hold
    what is too much for one answer: nobody is given that any more, and it goes soon. Ask again to see it gone."""

    count: int
    skipped: int
    pending: list[str]


class Clear(Message, frozen=True):
    """Removes every row of one keyspace. Answered by Removed. `dry_run`: only says how many."""

    keyspace: bytes
    force: bool = True
    wait_ms: int = 1000
    dry_run: bool = False


class Pin(Message, frozen=True):
    """Rows that may not be evicted for `ttl_ms` (0: until unpinned). Answered by Done(count)."""

    keyspace: bytes
    hashes: bytes
    ttl_ms: int = 0
    shards: bytes = b""


class Unpin(Message, frozen=True):
    """The reverse of Pin. Answered by Done(count)."""

    keyspace: bytes
    hashes: bytes
    shards: bytes = b""


class Drain(Message, frozen=True):
    """No new puts are placed on the node of this name, whichever segment it announces, and what it holds is copied to
    others as far as they have room, and then dropped there; `on` false ends that. Answered by Done(1), or Done(0) where
    it was so already."""

    node: str
    on: bool = True


class GetDrains(Message, frozen=True):
    """How far nodes are that are to be emptied."""


class DrainProgress(msgspec.Struct, frozen=True, array_like=True):
    """Of one node, in copies (ranks of blocks) and their payload, as far as the answering master's shards go. `moved`: are
    elsewhere; `left`: are there still; `no_space`: of those, found no room elsewhere when they were last looked at."""

    node: str
    moved: int
    moved_bytes: int
    left: int
    left_bytes: int
    no_space: int


class Drains(Message, frozen=True):
    """Answer to GetDrains, by name."""

    nodes: list[DrainProgress]


class Warm(Message, frozen=True):
    """Copies ahead of use: to `node`, or (empty) until there are `copies` of each rank. Of the blocks that `hashes` names,
    `with_prefix` and all before each in its run; none: of the whole keyspace, the hottest first. `dry_run`: only says
    how many. Each master answers for its own shards, by Warmed."""

    keyspace: bytes
    hashes: bytes = b""
    with_prefix: bool = False
    node: str = ""
    copies: int = 2
    dry_run: bool = False


class Warmed(Message, frozen=True):
    """Copies that were ordered, and are made in the background as far as there is room, and their payload. `left_out`: so
    many more would have been, and there are too many waiting."""

    copies: int
    size_bytes: int
    left_out: int


class SetReplicas(Message, frozen=True):
    """How many copies the blocks of a keyspace should have, on so many hosts where there are. They are made afterwards,
    from node to node. Answered by Done: count 1 where that is new."""

    keyspace: bytes
    replicas: int


class Describe(Message, frozen=True):
    """Everything known of one block."""

    keyspace: bytes
    block_hash: bytes
    shard: int = -1


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """One rank's place."""

    rank: int
    segment: bytes
    slot: int
    generation: int
    length: int


class Description(Message, frozen=True):
    """Answer to Describe. `lease_ms`, `pin_ms`: what is left (pin -1: no end); `age_ms`: since last use."""

    ready: bool
    position: int
    parent: bytes
    copies: list[Copy]
    children: int
    lease_ms: int
    pin_ms: int
    pinned: bool
    age_ms: int


class DescribeKeyspace(Message, frozen=True):
    """How much there is of one keyspace."""

    keyspace: bytes


class KeyspaceFacts(Message, frozen=True):
    """Answer to DescribeKeyspace. `payload_bytes` of all copies; with sizes of their own, or of ranks, it is close
    and not exact. `requests`, `asked_blocks` and `hit_blocks` since the master began. `replicas`: copies that each rank of a
    block should have."""

    rows: int
    copies: int
    payload_bytes: int
    pins: int
    requests: int = 0
    asked_blocks: int = 0
    hit_blocks: int = 0
    replicas: int = 1


class ListKeyspaces(Message, frozen=True):
    """Every keyspace of one tenant."""

    tenant: str


class Keyspaces(Message, frozen=True):
    """Answer to ListKeyspaces."""

    specs: list[KeyspaceSpec]


AS_CONFIGURED = -1


class SetTenant(Message, frozen=True):
    """A tenant's quota in bytes. Answered by Done: count 1 where that is new."""

    tenant: str
    quota_bytes: int  # 0: none; AS_CONFIGURED: what the masters' settings say, as of one that was never set


class ListTenants(Message, frozen=True):
    """Tenants that have keyspaces or a quota."""


class TenantInfo(msgspec.Struct, frozen=True, array_like=True):
    """`used_bytes`: of all copies, in the shards that the answering master owns."""

    tenant: str
    quota_bytes: int
    used_bytes: int
    keyspaces: int


class Tenants(Message, frozen=True):
    """Answer to ListTenants, by name."""

    tenants: list[TenantInfo]


class GetClusterMap(Message, frozen=True):
    """Who serves what."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A node's segment and its doors. Empty text: that door is closed.

    `host`: equal for processes that can map `segment_path` (boot id and /dev/shm's device).
    """

    node: str
    segment: bytes
    host: str
    rpc_address: str
    data_address: str
    unix_path: str
    segment_path: str
    capacity_bytes: int
    page_bytes: int
    engine_address: str = ""  # of its transfer engine, for example rdma://10.0.0.7:15428
    engine_base: int = 0  # address of the segment's first byte in the node's memory


class NodeState(IntEnum):
    """What a master thinks of a node."""

    JOINING = 0  # announced, its inventory is not complete: matched as far as it is known
    LIVE = 1
    SUSPECT = 2  # not matched, not written to, not forgotten
    LOST = 3


class NodeEntry(msgspec.Struct, frozen=True, array_like=True):
    """A node in the cluster map. `draining`: it gets no new puts. `free_bytes`: -1 for those who see one tenant."""

    info: NodeInfo
    state: NodeState
    free_bytes: int
    draining: bool = False


class ClusterMap(Message, frozen=True):
    """Answer to GetClusterMap. `owners`: for each shard the index of its master in `masters`, -1 where it has none
    now. `epoch` is raised whenever a shard changes hands."""

    epoch: int
    shards: int
    masters: list[str]
    nodes: list[NodeEntry]
    owners: list[int] = []


class GetStatus(Message, frozen=True):
    """Counters and sizes of a server, for people and tests."""


class StatusReport(Message, frozen=True):
    """Answer to GetStatus: flat name -> number or text."""

    facts: dict[str, int | float | str]


# ---------------------------------------------------------------- node, master


class Announce(Message, frozen=True):
    """A segment offers itself. `specs`: of every keyspace in it. `epoch_seen`: the newest it has obeyed."""

    info: NodeInfo
    specs: Annotated[list[KeyspaceSpec], Meta(max_length=ITEMS_MAX)]
    epoch_seen: int


class Announced(Message, frozen=True):
    """The master that the node reports to. `epoch`: of this life of it. `claims`: (shard, epoch) of each shard that
    it owns; `shards`: how many the cluster has. `masters`: addresses of all. `heard_first`: the node is alone in the pool, and
    what it has reported on this connection is taken in before anybody is answered (master/heard_first.py)."""

    epoch: int
    heartbeat_ms: int
    shards: int = 1
    claims: list[tuple[int, int]] = []
    masters: list[str] = []
    heard_first: bool = False


class Entries(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """Committed slots of one keyspace and shard, in columns: an inventory page or fresh commits. `copied`: by an order of
    a master (CopyOrder)."""

    keyspace: bytes
    ranks: bytes  # u16
    positions: bytes  # u32
    hashes: bytes
    parents: bytes  # zeros at position 0 and in flat keyspaces
    slots: bytes  # u32
    generations: bytes  # u64
    lengths: bytes  # u64
    copied: bool = False


class Freed(msgspec.Struct, frozen=True, array_like=True, tag="freed"):
    """Slots of one keyspace that no longer hold what they held."""

    keyspace: bytes
    ranks: bytes
    hashes: bytes
    slots: bytes
    generations: bytes


class Moved(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """Slots whose bytes the node copied elsewhere in its segment, to empty a page."""

    keyspace: bytes
    ranks: bytes
    hashes: bytes
    slots: bytes
    generations: bytes
    new_slots: bytes
    new_generations: bytes


class DropDone(msgspec.Struct, frozen=True, array_like=True, tag="drop_done"):
    """Everything that Drop `drop_id` named has been flipped; its Freed entries came before this."""

    drop_id: int


class Checked(msgspec.Struct, frozen=True, array_like=True, tag="checked"):
    """What the node found where somebody reported a bad block."""

    keyspace: bytes
    rank: int
    block_hash: bytes
    slot: int
    generation: int
    good: bool


class Copied(msgspec.Struct, frozen=True, array_like=True, tag="copied"):
    """CopyOrder `order` is over; the Entries of what was copied came before this. `statuses`: one Status byte a block."""

    order: int
    statuses: bytes


class InventoryEnd(msgspec.Struct, frozen=True, array_like=True, tag="inventory_end"):
    """All that the segment holds of the shard has been named since the stream's first message."""


class Obeyed(msgspec.Struct, frozen=True, array_like=True, tag="obeyed"):
    """First in a stream: orders (see Drop) of this shard that the segment has obeyed already, whoever gave them.
    `next_generation`: whatever is begun in this segment from now on has this one or a greater one; 0: not said."""

    orders: bytes  # two u64 each
    next_generation: int = 0


Op = Entries | Freed | Moved | DropDone | Checked | Copied | InventoryEnd | Obeyed


class Report(Message, frozen=True):
    """Numbered piece of the one ordered stream between a segment and a shard. Sequence 0 starts a stream, with a full
    inventory to follow. Answered by Done, or Failed(StreamGap, WrongShard). `epoch`: of the owner whom the stream is
    for; one that has come too late is nobody's news. 0: not said."""

    segment: bytes
    stream: int
    sequence: int
    ops: Annotated[list[Op], Meta(max_length=ITEMS_MAX)]
    shard: int = 0
    epoch: int = 0


class Refused(Message, frozen=True):
    """Answers a Report as Done does, where the index has no use for some of the committed slots, which are to be dropped.
    `generations` (u64): theirs. `answers`: one PutAnswer byte for each: EXISTS, or BUSY where what is there may go."""

    count: int
    generations: bytes
    answers: bytes


class Heartbeat(Message, frozen=True):
    """Every second. Answered by Announced. `heard_first`: what the last one said, as the node goes by it."""

    segment: bytes
    epoch: int
    free_bytes: int
    facts: dict[str, int | float] = {}
    heard_first: bool = False


class Need(Message, frozen=True):
    """The node wants `want_bytes` of its segment back. Rows leave the index before the answer.
    Answered by Victims."""

    segment: bytes
    epoch: int
    want_bytes: int


class DropList(msgspec.Struct, frozen=True, array_like=True):
    """Locations of one keyspace on the addressed node."""

    keyspace: bytes
    ranks: bytes
    hashes: bytes
    slots: bytes
    generations: bytes
    shard: int = 0


class Victims(Message, frozen=True):
    """What Need found, oldest first. `next_age_ms`: age of the next victim (-1: none left). `claims`: as in
    Announced, of the shards that `drops` names."""

    drops: list[DropList]
    freed_bytes: int
    next_age_ms: int
    claims: list[tuple[int, int]] = []


class Drop(Message, frozen=True):
    """Pushed by the master: flip these headers, then say DropDone on the stream.

    `drops`: exact locations. `hashes` (with `keyspace`): whatever holds or is about to hold these rows, WRITING
    slots too. `whole_keyspace`: everything in it. All of it in one shard, whose `epoch` the master holds.
    `order`: (epoch, drop id) under which this was asked first. Asked again, under any epoch and id, it must not hit
    what was put since: a node obeys the predicate of an order once. (0, 0): never asked again.
    `before`: it means no slot of this generation or a later one, which were begun after it was asked; 0: any.
    """

    drop_id: int
    epoch: int
    drops: list[DropList] = []
    keyspace: bytes = b""
    hashes: bytes = b""
    whole_keyspace: bool = False
    shard: int = 0
    order: tuple[int, int] = (0, 0)
    before: int = 0


class Check(Message, frozen=True):
    """Pushed by the master: verify this slot's checksum and say Checked on the shard's stream."""

    epoch: int
    keyspace: bytes
    rank: int
    block_hash: bytes
    slot: int
    generation: int
    shard: int = 0


class CopyOrder(Message, frozen=True):
    """Pushed by the master to the node that is to hold further copies: read these blocks from the data lanes of `source`,
    commit them, then say Copied on the shard's stream. An order is carried out once.

    All of one keyspace, rank and shard. Columns as in Entries.
    """

    order: int
    epoch: int
    spec: KeyspaceSpec
    source: NodeInfo
    rank: int
    positions: bytes
    hashes: bytes
    parents: bytes
    slots: bytes
    generations: bytes
    lengths: bytes
    shard: int = 0


# ---------------------------------------------------------------- client, node


class OpenSession(Message, frozen=True):
    """A writer on this host. It holds a flock on `lock_path` from before its first write until it dies."""

    session: int
    pid: int
    lock_path: str


class SessionOpened(Message, frozen=True):
    """What the client needs to map the segment."""

    info: NodeInfo
    data_offset: int
    header_offset: int
    headers_per_page: int


class BeginItem(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive blocks of one rank to be written. `lengths` (u64) is empty where the keyspace fixes the size;
    `keys`: key texts of plain objects, else empty."""

    keyspace: bytes
    rank: int
    position: int
    parent: bytes
    hashes: bytes
    lengths: bytes = b""
    keys: list[str] = []
    shard: int = 0


class Begin(Message, frozen=True):
    """Asks for slots. Idempotent by (session, put_id): a repeated one gets the same grants.
    `commit`: put ids whose copies are complete, committed first (saves a round trip). `direct`: no master was asked (see
    PutStarted); all BUSY where one must be, now."""

    session: int
    put_id: int
    items: list[BeginItem]
    commit: list[int] = []
    direct: bool = False


class Granted(Message, frozen=True):
    """One entry a block over all items, in order. `statuses`: one Status byte; OK has a slot and a generation."""

    put_id: int
    statuses: bytes
    slots: bytes
    generations: bytes


class Commit(Message, frozen=True):
    """The copies of these puts are complete. `visible`: answer only after the master has them: EXISTS or BUSY where it has
    no use for them. `direct`: as in their Begin; visible ones then, and FAILED where their report stream has broken meanwhile.
    `ahead`: a further put id (0: none), under which the node may grant as many slots of that size as the last of these puts
    had: the next put of such objects needs no Begin, see PutAhead. Answered by Committed."""

    session: int
    put_ids: list[int]
    visible: bool = False
    direct: bool = False
    ahead: int = 0


class Committed(Message, frozen=True):
    """`statuses`: for each put id one Status byte a block, in the order of its Begin (GONE: dropped meanwhile).
    `ahead`: slots that were granted under the put id that was asked for; None where there are none to spare."""

    statuses: list[bytes]
    ahead: Granted | None = None


AHEAD_SLOTS = 128
AHEAD_BYTES = 128 << 20
"""Slots of one put that are granted ahead, at most."""


class PutAhead(Message, frozen=True):
    """Begin and Commit in one, of a put whose slots were granted ahead: its copies are complete. The item's blocks lie in the
    first of those slots, in order; the others are given back. All are GONE where those slots weren't granted ahead, or not
    by this life of the node; they are to be put anew then. `visible`, `direct`, `ahead`: as in Commit.
    Idempotent by (session, put_id). Answered by Committed."""

    session: int
    put_id: int
    item: BeginItem
    visible: bool = False
    direct: bool = False
    ahead: int = 0


class Revoke(Message, frozen=True):
    """These puts won't be finished, and nothing of theirs can still be written. Answered by Done."""

    session: int
    put_ids: list[int]


class SessionHeartbeat(Message, frozen=True):
    """Lists the puts that are open; any other one of the session that is older than this is revoked."""

    session: int
    open_put_ids: list[int]
    newest_put_id: int


class PullWrite(Message, frozen=True):
    """Begin, payload and commit in one exchange, over transfer engines: the node *reads* the payloads out of the
    writer's registered memory (I4). Answered by Granted once they are committed.

    `engine_address`: as in NodeInfo, of the writer. `addresses`, `sizes` (u64): pieces there whose bytes, back to
    back, are the item's payloads back to back. `lengths` of the item are always given. The node commits only if the
    8 bytes at `guard_address`, read after the payloads, are `token`: the writer wipes them out before it uses that
    memory for anything else, so a put that it has given up never gets other bytes."""

    item: BeginItem
    engine_address: str
    addresses: bytes
    sizes: bytes
    guard_address: int
    token: int
    visible: bool = False


SMALL_BYTES = 64 << 10
"""Of a PutSmall's payload, and of a SmallData's."""

SMALL_OBJECTS = 64
"""Of a GetSmall."""


class PutSmall(Message, frozen=True):
    """Begin, payload and commit in one exchange: of objects so small that two exchanges cost more than sending them.
    The node writes them itself, so no session is needed (I4). Answered by Committed.

    `payload`: of all blocks, back to back, SMALL_BYTES at most. `lengths` of the item are always given. `direct`: as in
    Begin and Commit."""

    item: BeginItem
    payload: View
    visible: bool = False
    direct: bool = False


class GetSmall(Message, frozen=True):
    """As LaneRead, of at most SMALL_OBJECTS objects and SMALL_BYTES: for readers of other hosts. Answered by SmallData."""

    slots: bytes
    generations: bytes
    lengths: bytes


class SmallData(Message, frozen=True):
    """`statuses`: one Status byte an object; of those that are OK the payloads, back to back, and the 128-byte headers,
    read after the last payload byte (I3)."""

    statuses: bytes
    payload: bytes
    headers: bytes


class ListKeys(Message, frozen=True):
    """What a node holds of one keyspace, piece by piece. `cursor`: 0, then what the last answer said."""

    keyspace: bytes
    cursor: int = 0


class KeyList(Message, frozen=True):
    """Answer to ListKeys: `hashes`, `ranks` (u16), and the key texts, empty where none was stored. `cursor` of the
    next piece; -1 at the end. Objects that move meanwhile may be named twice or not at all."""

    hashes: bytes
    ranks: bytes
    keys: list[str]
    cursor: int


# ---------------------------------------------------------------- data lanes


class LaneRead(Message, frozen=True):
    """Slots to send, in order. Answered by LaneData, the payloads back to back, then one 128-byte header
    snapshot for each slot that was sent, taken after the last payload byte had left."""

    slots: bytes
    generations: bytes
    lengths: bytes


class LaneData(Message, frozen=True):
    """`statuses`: one Status byte an object; only those that are OK follow."""

    statuses: bytes


class LaneKeys(Message, frozen=True):
    """Key texts of plain objects in these slots. For nodes."""

    slots: bytes
    generations: bytes


class LaneKeyTexts(Message, frozen=True):
    """Answer to LaneKeys: one a slot; empty where the object isn't there any more, or has none."""

    keys: list[str]


class LaneWrite(Message, frozen=True):
    """Begin, payload and commit in one exchange: the payloads follow back to back, `length` bytes each.
    `lengths` (u64) always given. Answered by Granted once the last byte is in and committed. `direct`: see PutSmall."""

    put_id: int
    item: BeginItem
    visible: bool = False
    direct: bool = False


ClientToMaster = (
    RegisterKeyspace
    | Probe
    | Match
    | Presence
    | Locate
    | Renew
    | PutStart
    | PutAbandon
    | ReportBad
    | Remove
    | Clear
    | Pin
    | Unpin
    | Drain
    | GetDrains
    | Warm
    | SetReplicas
    | SetTenant
    | ListTenants
    | Describe
    | DescribeKeyspace
    | ListKeyspaces
    | GetClusterMap
    | GetStatus
)
NodeToMaster = Announce | Report | Heartbeat | Need
MasterRequest = Hello | ClientToMaster | NodeToMaster
MasterReply = (
    Welcome
    | Failed
    | Done
    | KeyspaceRegistered
    | Probed
    | Matched
    | Present
    | Located
    | Renewed
    | PutStarted
    | Removed
    | Description
    | KeyspaceFacts
    | Keyspaces
    | Tenants
    | Drains
    | Warmed
    | ClusterMap
    | StatusReport
    | Announced
    | Refused
    | Victims
)
MasterPush = Drop | Check | CopyOrder | Announced
ClientToNode = (
    OpenSession
    | RegisterKeyspace
    | Begin
    | Commit
    | PutAhead
    | Revoke
    | SessionHeartbeat
    | ListKeys
    | GetStatus
    | PullWrite
    | PutSmall
    | GetSmall
)
NodeRequest = Hello | ClientToNode
NodeReply = (
    Welcome
    | Failed
    | Done
    | KeyspaceRegistered
    | SessionOpened
    | Granted
    | Committed
    | SmallData
    | KeyList
    | StatusReport
)
LaneRequest = Hello | RegisterKeyspace | LaneRead | LaneKeys | LaneWrite
LaneReply = Welcome | Failed | KeyspaceRegistered | LaneData | LaneKeyTexts | Granted

encode = msgspec.msgpack.Encoder().encode
"""Any message to bytes."""

decode_master_request = msgspec.msgpack.Decoder(MasterRequest).decode
decode_from_master = msgspec.msgpack.Decoder(MasterReply | MasterPush).decode
decode_node_request = msgspec.msgpack.Decoder(NodeRequest).decode
decode_from_node = msgspec.msgpack.Decoder(NodeReply).decode
decode_lane_request = msgspec.msgpack.Decoder(LaneRequest).decode
decode_lane_reply = msgspec.msgpack.Decoder(LaneReply).decode
