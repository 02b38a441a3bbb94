"""Where Moonpool deliberately answers otherwise than Mooncake 0.3.13. docs/mooncake-compat.md has a row for each."""

from __future__ import annotations

DIFFERENCES: dict[str, str] = {
    "use-without-setup": "calls before setup and after close return -600 (or an empty answer); Mooncake crashes",
    "empty-value": "an empty value is refused with -600 by every put; Mooncake's put_from and put_parts answer 0 and store nothing",
    "null-address": "memory at address 0 is refused with -600; Mooncake answers as if it had been read or written",
    "long-key": "keys have at most 4096 bytes of UTF-8, longer ones are refused with -600",
    "array-value": "a value is all bytes of its buffer; Mooncake stores as many bytes as the buffer has items, and ignores strides",
    "empty-get-batch": "get_batch([]) is []; Mooncake answers [b'']",
    "same-key-twice": "a key that is named twice in a batch gets the first value; in Mooncake's batch_put_from the last one wins",
    "more-room": "batch_get_into_multi_buffers with more room than the object has reads it and returns its size; Mooncake answers -800",
    "remove-after-read": "a read or an exist doesn't forbid a remove; Mooncake answers -706 for 10 s, and remove_all leaves such objects",
    "too-large": "an object has at most a page, which is 1/32 of the segment, from 1 to 64 MiB; larger ones are refused with -200. Mooncake takes what fits into a segment, and answers -600 beyond its local buffer",
    "contradicting-ranges": "where the lists of get_into_ranges contradict each other, the answer has the shape of all_sizes",
    "scalar-tensor": "a tensor without dimensions comes back without dimensions; Mooncake gives it one",
    "replica-num": "replica_num, preferred segments and group_ids are taken as hints that this pool doesn't need: one copy, on the writer's host where there is room",
    "full-pool": "a put into a full pool evicts and succeeds; Mooncake answers -200 until its eviction thread has run",
    "frozen-master": "a master that doesn't answer costs one deadline (2 s, and 1 s for each 256 MiB of a transfer), later calls fail at once until it answers again; Mooncake waits 30 s each time",
    "health": "health_check asks the master now; Mooncake says 0 until its next ping has failed",
    "being-written": "an object that somebody else is still writing isn't there yet (-704); Mooncake answers -703",
    "unreachable-put": "a put or get that finds no master answers -800; Mooncake answers -900",
    "after-fork": "in a forked child every call raises UsedAfterFork; in Mooncake it hangs or crashes",
    "regex": "remove_by_regex takes Python's expressions; Mooncake takes ECMAScript's",
    "mounted-file": "mount_segment contributes a file of the pool's own, as large and in the same folder; Mooncake uses the file itself",
}
