"""A watch on etcd that misses nothing and says so when it must.

Three traps of the client library's watch, each shut here. It connects again by itself, from the revision that was
last in a header: that is the server's newest, not the last event's, so events between the two would be missing. A
watch that etcd cancels, since its history is compacted or its token has ended, ends in silence. And every connection
begins with a message that has no events.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import grpc

from moonpool.master.store.base import Changes, Record
from moonpool.master.store.etcd_link import EtcdLinks, Link
from moonpool.master.store.limits import prefix_end
from moonpool.schemas.errors import Closed, Compacted, MoonpoolError

log = logging.getLogger(__name__)

PAUSE_S = 0.2
"""Between two attempts to watch."""
PUT = 0
"""etcd's event type; the other is DELETE."""


async def watch(
    links: EtcdLinks,
    prefix: bytes,
    after_revision: int,
    record: Callable[[Any], Record],
    key_start: int,
) -> AsyncIterator[Changes]:
    """See MetadataStore. `prefix` and the events' keys are whole; ours begin at `key_start`."""
    while True:
        link = links.current()
        try:
            async with contextlib.aclosing(_responses(links, link, prefix, after_revision)) as responses:
                async for response in responses:
                    if response.compact_revision > after_revision:
                        raise Compacted(revision=after_revision)
                    for change in _changes(response.events, record, key_start):
                        after_revision = change.revision
                        yield change
        except (grpc.aio.AioRpcError, OSError) as error:
            log.debug("watching %s failed: %r", links.name, error)
            links.turn(link)
        except (Closed, Compacted):
            raise
        except MoonpoolError as error:
            log.warning("watching %s failed: %s", links.name, error)
        if links.closed:
            raise Closed(what="the metadata store")
        await asyncio.sleep(PAUSE_S)


async def _responses(
    links: EtcdLinks, link: Link, prefix: bytes, after_revision: int
) -> AsyncGenerator[Any, None]:
    """Of one connection, until it is retired, lost or the watch cancelled."""
    await links.sign_in(link)
    stream = link.watch.watch(prefix, prefix_end(prefix), start_revision=after_revision + 1)
    async with contextlib.aclosing(stream):  # type: ignore[type-var]
        for number in itertools.count():
            following = asyncio.ensure_future(anext(stream, None))
            try:
                await asyncio.wait({following, link.retired}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not following.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
            if following.cancelled():
                return
            response = following.result()
            if response is None or (response.created and number > 0):  # it has connected again: from where?
                return
            if response.canceled and not response.compact_revision:
                log.warning("etcd ended a watch: %s", response.cancel_reason)
                link.signed_in = link.signed_in and "auth" not in response.cancel_reason
                return
            yield response


def _changes(events: Any, record: Callable[[Any], Record], key_start: int) -> list[Changes]:
    found = []
    for revision, group in itertools.groupby(events, key=lambda event: event.kv.mod_revision):
        one = list(group)
        puts = tuple(record(event.kv) for event in one if event.type == PUT)
        deletes = tuple(event.kv.key[key_start:] for event in one if event.type != PUT)
        found.append(Changes(revision, puts, deletes))
    return found
