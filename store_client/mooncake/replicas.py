"""Where an object lies, in Mooncake's words. Addresses are offsets of slots: nobody outside a node reads by address."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ReplicaStatus(Enum):
    """State of a replica. Only complete ones are ever shown."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


@dataclass(slots=True)
class Descriptor:
    """A piece of a segment."""

    size: int = 0
    buffer_address: int = 0
    transport_endpoint: str = ""


@dataclass(frozen=True, slots=True)
class MemoryDescriptor:
    """A replica in memory."""

    buffer_descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class DiskDescriptor:
    """A replica on disk. There are none here."""

    file_path: str
    object_size: int


@dataclass(frozen=True, slots=True)
class ReplicaDescriptor:
    """One replica of an object."""

    status: ReplicaStatus
    memory: MemoryDescriptor

    def is_memory_replica(self) -> bool:
        """Always."""
        return True

    def is_disk_replica(self) -> bool:
        """Never."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Never."""
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Segment, place and size."""
        return self.memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Raises RuntimeError: it isn't on disk."""
        raise RuntimeError("Expected DiskDescriptor")


def in_memory(size_bytes: int, slot: int, endpoint: str) -> ReplicaDescriptor:
    """A complete replica in that slot of the segment behind `endpoint`."""
    place = Descriptor(size_bytes, slot, endpoint)
    return ReplicaDescriptor(ReplicaStatus.COMPLETE, MemoryDescriptor(place))
