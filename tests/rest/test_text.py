"""Prefixes of a prompt that is given as text: the hashes are those that engines make."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.report_node import entries_of
from support.rest_master import RestMaster

from moonpool.master.rest.prompt_text import hashes_of, tokens_of
from moonpool.schemas.config import ClientSettings, MasterSettings
from moonpool.schemas.errors import InvalidParams, NotFound, NotSupported
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.packed import join_hashes
from moonpool.store_client import StoreClient

tokenizers = pytest.importorskip("tokenizers")

SEED = hashlib.sha256(b"seed").digest()
WORDS = [f"w{number}" for number in range(40)]


def spec_of(block_tokens: int = 4, **facts: str) -> KeyspaceSpec:
    identity = {
        "hash_algorithm": "sha256",
        "hash_seed": SEED.hex(),
        "hash_tokens": "4",
        "adapter": "",
        **facts,
    }
    return KeyspaceSpec(
        kind=Kind.CHAINED,
        name="model",
        shard_bytes=(4096,),
        block_tokens=block_tokens,
        identity=tuple(sorted(identity.items())),
    )


def chain_of(tokens: list[int]) -> list[bytes]:
    """As vLLM's sha256 over pickles, blocks of 4."""
    names, parent = [], SEED
    for end in range(4, len(tokens) + 1, 4):
        parent = hashlib.sha256(pickle.dumps((parent, tuple(tokens[end - 4 : end]), None), 5)).digest()
        names.append(parent)
    return names


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizers")
    words = tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "words.json"))
    (folder / "broken.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def master(folder: Path) -> Iterator[RestMaster]:
    settings = MasterSettings(port=0, suspect_after_s=60.0, tokenizers_dir=str(folder))
    with RestMaster(settings=settings) as running:
        yield running


def test_a_text_s_prefix_is_found(master: RestMaster) -> None:
    spec, other = spec_of(), spec_of(hash_algorithm="xxhash")
    hashes = chain_of(list(range(12)))
    with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client:
        client.register_keyspace(spec)
        client.register_keyspace(other)
    entries = msgspec.structs.replace(
        entries_of(hashes),
        keyspace=spec.digest(),
        hashes=join_hashes(hashes),
        parents=join_hashes([bytes(32), *hashes[:-1]]),
    )
    master.run(master.node.report([entries]))
    body = {"text": " ".join([*WORDS[:10], *WORDS[20:30]]), "tokenizer": "words"}
    answer = master.client().post("/api/v1/prefixes/text", json=body).json()
    assert answer["tokens"] == 20
    (found,) = answer["items"]
    assert (found["keyspace"], found["blocks"], found["asked_blocks"]) == (spec.digest().hex(), 2, 5)
    reasons = {one["keyspace"]: one["reason"] for one in answer["skipped"]}
    assert reasons[other.digest().hex()] == "its blocks are hashed by xxhash"
    assert spec.digest().hex() not in reasons
    for tokenizer, status in (("none", 404), ("broken", 400), ("../words", 422)):
        refused = master.client().post("/api/v1/prefixes/text", json={**body, "tokenizer": tokenizer})
        assert refused.status_code == status, tokenizer


def test_blocks_of_several_hashes_are_named_by_the_last() -> None:
    tokens = list(range(19))
    assert hashes_of(spec_of(), tokens) == chain_of(tokens)
    assert hashes_of(spec_of(block_tokens=8), tokens) == chain_of(tokens)[1::2]


@pytest.mark.parametrize(
    "facts",
    [
        {"adapter": "ab"},
        {"hash_seed": "x"},
        {"hash_tokens": "3"},
        {"hash_tokens": "0"},
        {"hash_algorithm": ""},
    ],
)
def test_what_can_t_be_hashed_here_is_refused(facts: dict[str, str]) -> None:
    with pytest.raises(NotSupported):
        hashes_of(spec_of(**facts), [1] * 20)


def test_refusals_name_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSupported, match="tokenizers_dir"):
        tokens_of("w1", "", "words", special=True)
    with pytest.raises(NotFound, match="nobody"):
        tokens_of("w1", str(folder), "nobody", special=True)
    with pytest.raises(InvalidParams):
        tokens_of("w1", str(folder), "broken", special=True)
    monkeypatch.setitem(sys.modules, "cbor2", None)
    with pytest.raises(NotSupported, match="cbor2"):
        hashes_of(spec_of(hash_algorithm="sha256_cbor"), [1] * 8)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (folder / "again.json").write_text((folder / "words.json").read_text())
    with pytest.raises(NotSupported, match="tokenizers is not installed"):
        tokens_of("w1", str(folder), "again", special=True)


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_hashes_are_vllm_s(algorithm: str) -> None:
    kv_cache_utils: Any = pytest.importorskip("vllm.v1.core.kv_cache_utils")
    hashing: Any = pytest.importorskip("vllm.utils.hashing")
    parent, theirs, tokens = SEED, [], list(range(100, 140))
    for start in range(0, len(tokens), 4):
        block = tokens[start : start + 4]
        parent = kv_cache_utils.hash_block_tokens(hashing.get_hash_fn_by_name(algorithm), parent, block)
        theirs.append(bytes(parent))
    assert hashes_of(spec_of(hash_algorithm=algorithm), tokens) == theirs
