"""How a put is to be replicated, and the enumerations beside it, with the names that Mooncake gives them."""

from __future__ import annotations

from enum import Enum


class SoftPinAction(Enum):
    """What a put does to the soft pin of its objects."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(Enum):
    """What an object is. Taken, and not used."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicateConfig:
    """Options of a put. Pins are kept; the number and the place of replicas are hints that this pool doesn't take.

    Attributes that aren't named here can't be set.
    """

    __slots__ = (
        "data_type",
        "dfs_replica_num",
        "group_ids",
        "nof_replica_num",
        "prefer_alloc_in_same_node",
        "preferred_nof_segments",
        "preferred_segment",
        "preferred_segments",
        "replica_num",
        "soft_pin_action",
        "soft_pin_ttl_ms",
        "with_hard_pin",
    )

    def __init__(self) -> None:
        self.replica_num = 1
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.soft_pin_action = SoftPinAction.PRESERVE
        self.soft_pin_ttl_ms: int | None = None
        self.with_hard_pin = False
        self.preferred_segments: list[str] = []
        self.preferred_segment = ""
        self.preferred_nof_segments: list[str] = []
        self.prefer_alloc_in_same_node = False
        self.data_type = ObjectDataType.UNKNOWN
        self.group_ids: list[str] | None = None


SOFT_PIN_S = 30 * 60.0
"""Of a soft pin that names no time."""

DEFAULT = ReplicateConfig()


def valid_for(config: ReplicateConfig, count: int) -> bool:
    """Whether a put of so many objects may have it."""
    return config.replica_num >= 1 and (config.group_ids is None or len(config.group_ids) == count)


def pin_s(config: ReplicateConfig) -> float | None:
    """For how long its objects are pinned: 0 without end, None not at all."""
    if config.with_hard_pin:
        return 0.0
    if config.soft_pin_action is SoftPinAction.ENABLE:
        return SOFT_PIN_S if config.soft_pin_ttl_ms is None else config.soft_pin_ttl_ms / 1000
    return None
