"""Which masters there are, and which of them owns which shard: pure state machines, and what runs them."""
