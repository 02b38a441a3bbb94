"""Replays of request traces: what share of blocks a pool of some size would have had, under each policy."""
