"""The PoolKey entries of a shard in the metadata store: hints that let a new owner answer at once (I8)."""
