"""From a prompt's text to its block hashes, as vLLM makes them: a tokenizer of the master's folder, and what a keyspace says of
its engines' hashes."""

from __future__ import annotations

import hashlib
import importlib
import pickle
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from moonpool.schemas.errors import InvalidParams, NotFound, NotSupported
from moonpool.schemas.keyspace import KeyspaceSpec

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Of a tokenizer: a file or folder in the folder, never a path out of it."""

TOKENIZERS_KEPT = 4
BLOCKS_MAX = 8192


def tokens_of(text: str, folder: str, name: str, *, special: bool) -> list[int]:
    """Token ids. `special`: with those that the tokenizer puts around a prompt. Raises NotSupported, NotFound,
    InvalidParams."""
    if not folder:
        raise NotSupported(what="text", reason="the master's setting tokenizers_dir names no folder")
    paths = (Path(folder) / name / "tokenizer.json", Path(folder) / f"{name}.json")
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise NotFound(key=f"tokenizer {name}")
    ids: list[int] = (
        _tokenizer(str(path), path.stat().st_mtime_ns).encode(text, add_special_tokens=special).ids
    )
    return ids


@lru_cache(TOKENIZERS_KEPT)
def _tokenizer(path: str, changed_ns: int) -> Any:
    tokenizer = _package("tokenizers").Tokenizer
    try:
        return tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 # the library raises plain ones
        raise InvalidParams(field="tokenizer", value=str(error)[:200], allowed="a tokenizer.json") from None


def hashes_of(spec: KeyspaceSpec, tokens: Sequence[int]) -> list[bytes]:
    """Names of the full blocks of a prompt without images, salt or adapter. Raises NotSupported where the keyspace's
    engines hash in a way that isn't known here."""
    facts = dict(spec.identity)
    if facts.get("adapter"):
        raise NotSupported(what="text", reason="its blocks are of an adapter, whose name is in their hashes")
    try:
        parent, step = bytes.fromhex(facts["hash_seed"]), int(facts["hash_tokens"])
    except (KeyError, ValueError):
        raise NotSupported(what="text", reason="it doesn't say how its blocks are hashed") from None
    digest = _digest(facts.get("hash_algorithm", ""))
    if step < 1 or spec.block_tokens < step or spec.block_tokens % step:
        raise NotSupported(what="text", reason="its blocks are no whole number of hashes")
    scale = spec.block_tokens // step
    names: list[bytes] = []
    for end in range(step, min(len(tokens), BLOCKS_MAX * spec.block_tokens) + 1, step):
        parent = digest((parent, tuple(tokens[end - step : end]), None))
        names.append(parent)
    return names[scale - 1 :: scale]


def _digest(algorithm: str) -> Callable[[Any], bytes]:
    if algorithm == "sha256":
        return lambda value: hashlib.sha256(pickle.dumps(value, pickle.HIGHEST_PROTOCOL)).digest()
    if algorithm == "sha256_cbor":
        dumps = _package("cbor2").dumps
        return lambda value: hashlib.sha256(dumps(value, canonical=True)).digest()
    raise NotSupported(what="text", reason=f"its blocks are hashed by {algorithm or 'nothing known'}"[:100])


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotSupported(what="text", reason=f"the package {name} is not installed") from None
