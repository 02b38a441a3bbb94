"""What a master counts of its clients' requests."""

from __future__ import annotations

from collections import Counter

from moonpool.schemas.messages import (
    Clear,
    Located,
    Matched,
    Message,
    Present,
    Probed,
    PutAnswer,
    PutStart,
    PutStarted,
    Remove,
    Removed,
)

_PUT_ANSWERS = [(int(answer), f"put_{answer.name.lower()}") for answer in PutAnswer]


def count(counts: Counter[str], message: Message, reply: Message) -> None:
    """Takes one answered request in."""
    if isinstance(reply, (Located, Present)):
        return  # nothing comes so often
    if isinstance(reply, Probed):
        counts["matches"] += 1
        counts["matched_blocks"] += sum(reply.ready)
    elif isinstance(reply, Matched):  # of the gap that a probe has left
        counts["matched_blocks"] += sum(reply.ready)
    elif isinstance(message, PutStart) and isinstance(reply, PutStarted):
        for answers in reply.answers:
            for answer, name in _PUT_ANSWERS:
                counts[name] += answers.count(answer)
    elif isinstance(message, (Remove, Clear)) and not message.dry_run:
        counts["removals"] += 1
        if isinstance(reply, Removed):
            counts["removed_blocks"] += reply.count
