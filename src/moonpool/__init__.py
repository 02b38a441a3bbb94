"""Moonpool: a distributed pool for LLM KV cache."""

__version__ = "0.1.0"
