from typing import Any

from moonpool.store_client.native import NameLists

def copy_pieces(to: Any, source: Any, sizes: Any, threads: int, /) -> None: ...
def hash_keys(keys: list[str], bytes_max: int, /) -> bytes | int: ...
def probe_points(
    hashes: list[bytes], hash_bytes: int, mask: int, sampled: bool, runs: list[tuple[int, int, int]], /
) -> tuple[bytes, ...] | None: ...
def find_rows(lists: NameLists, packed: bytes, hash_bytes: int, rows: Any, /) -> None: ...
def set_name(lists: NameLists, block_hash: bytes, row: int, /) -> None: ...
def remove_name(lists: NameLists, block_hash: bytes, /) -> None: ...
def name_rows(
    lists: NameLists,
    names: list[bytes],
    packed: bytes,
    hash_bytes: int,
    rows: list[int],
    /,
) -> bool: ...
def forget_rows(
    lists: NameLists,
    names: list[bytes],
    hash_bytes: int,
    rows: list[int],
    /,
) -> bytes: ...
def fill_rows(
    columns: Any, rows: list[int], items: tuple[Any, Any, Any, Any], segment: int, now_s: float, /
) -> int: ...
def take_ghosts(ghosts: Any, packed: bytes, hash_bytes: int, /) -> bytes: ...
def find_present(columns: Any, packed: bytes, rank: int, usable: Any, until_s: float, /) -> bytes: ...
def find_places(
    columns: Any, packed: bytes, rank: int, usable: Any, fixed_length: int, /
) -> tuple[bytes, bytes, bytes, bytes, bytes] | None: ...
def pieces(addresses: Any, sizes: Any, /) -> tuple[bytes, bytes, bytes, bytes] | None: ...
def gather(addresses: Any, sizes: Any, bytes_max: int, /) -> tuple[bytes, bytes] | None: ...
def read_slots(
    columns: tuple[Any, Any, Any, Any, Any, Any, Any, Any],
    keyspace: int,
    rank: int,
    threads: int,
    verify: bool,
    missing: int,
    corrupt: int,
    /,
) -> bytearray: ...
def sweep(
    layout: Any, first: int, end: int, keyspace: int, before: int, shard: int, hashes: bytes | None, /
) -> bytes: ...
def sums(columns: tuple[Any, Any, Any, Any, Any], threads: int, /) -> bytes: ...
def exchange_lanes(
    columns: tuple[Any, Any, Any, Any, Any],
    lanes: list[tuple[int, bool, bytes, bytes, int, int]],
    deadline_s: float,
    /,
) -> list[tuple[int, bool, bytes]]: ...
def read_lane(
    fd: int,
    idle: bool,
    frame: bytes,
    columns: tuple[Any, Any, Any, Any, Any, Any, Any],
    keyspace: bytes,
    rank: int,
    missing: int,
    deadline_s: float,
    /,
) -> tuple[int, bool, bytes, bytearray, bytes | None]: ...
def serve_reads(
    fd: int,
    layout: Any,
    cells: Any,
    bytes_max: int,
    idle_s: float,
    stall_s: float,
    bytes_a_second: float,
    until_s: float,
    /,
) -> int: ...
def swap(cells: Any, expected: int, value: int, /) -> bool: ...
def name_slots(
    columns: tuple[Any, Any, Any, Any],
    generation: int,
    slot_bytes: int,
    by_class: bool,
    hashes: bytes,
    parent: bytes,
    keys: list[bytes] | None,
    /,
) -> int: ...
def fill_slots(columns: tuple[Any, Any, Any, Any, Any, Any], threads: int, /) -> bool: ...
def exchange(
    fd: int, request_id: int, body: bytes, deadline_s: float, limit_bytes: int, /
) -> tuple[int, bytes] | bytes: ...
def send(fd: int, request_id: int, body: bytes, deadline_s: float, /) -> None: ...
