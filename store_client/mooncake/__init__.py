"""Mooncake Store's Python API: what `from mooncake.store import ...` finds when Moonpool stands in for it."""

from moonpool.as_mooncake import install, uninstall
from moonpool.store_client.mooncake.config import ObjectDataType, ReplicateConfig, SoftPinAction
from moonpool.store_client.mooncake.handles import BufferHandle, MooncakeHostMemAllocator
from moonpool.store_client.mooncake.numa import bind_to_numa_node
from moonpool.store_client.mooncake.replicas import (
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    ReplicaDescriptor,
    ReplicaStatus,
)
from moonpool.store_client.mooncake.store import MooncakeDistributedStore
from moonpool.store_client.mooncake.tensors import HEADER_BYTES

__all__ = [
    "BufferHandle",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "bind_to_numa_node",
    "install",
    "uninstall",
]


def _tensor_metadata_size() -> int:
    """Bytes before the elements of a stored tensor."""
    return HEADER_BYTES
