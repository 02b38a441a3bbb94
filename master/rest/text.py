"""Prefixes of a prompt that is given as text."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from moonpool.master.rest.access import Tenant
from moonpool.master.rest.failures import responses
from moonpool.master.rest.others import UNANSWERED, Others, Unanswered
from moonpool.master.rest.parts import MasterParts
from moonpool.master.rest.prefixes import Prefix, chained_tables
from moonpool.master.rest.prompt_text import NAME_PATTERN, hashes_of, tokens_of
from moonpool.master.rest.route import prefixes_of
from moonpool.master.rest.views import Views
from moonpool.schemas.access import Identity
from moonpool.schemas.errors import NotSupported
from moonpool.schemas.keyspace import KeyspaceSpec

router = APIRouter(prefix="/api/v1", tags=["blocks"], responses=responses(404, 409))


class TextPrompt(BaseModel):
    """A prompt as the engine gets it, after its chat template."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"text": "You are a helpful assistant.", "tokenizer": "qwen3"}]},
    )

    text: str = Field(min_length=1, max_length=1 << 20)
    tokenizer: str = Field(
        pattern=NAME_PATTERN, description="NAME/tokenizer.json or NAME.json of tokenizers_dir"
    )
    special_tokens: bool = Field(
        True, description="whether the tokenizer adds those that it puts around a prompt"
    )
    keyspace: str | None = Field(None, pattern="^[0-9a-f]{32}$", description="null: all of the tenant's")


class Skipped(BaseModel):
    """A keyspace that can't be asked by text."""

    keyspace: str = Field(examples=["00" * 16])
    reason: str = Field(examples=["its blocks are hashed by xxhash"])


class TextPrefixes(BaseModel):
    """One entry a keyspace, the longest prefix first; without those that have none of it."""

    tokens: int = Field(description="of the prompt", examples=[812])
    items: list[Prefix]
    skipped: list[Skipped]
    unanswered: list[Unanswered] = UNANSWERED


@router.post("/prefixes/text", summary="What of a prompt, given as text, would hit, and where it lies")
async def text_prefixes(prompt: TextPrompt, views: Views, others: Others, identity: Tenant) -> TextPrefixes:
    """As /prefixes. The text is made to tokens by a tokenizer of the master's `tokenizers_dir`, and these to hashes as the
    engines of each keyspace make them."""
    folder = views.settings.tokenizers_dir
    tokens = await asyncio.to_thread(
        tokens_of, prompt.text, folder, prompt.tokenizer, special=prompt.special_tokens
    )
    specs = await views.read(lambda parts: _specs(parts, identity, prompt.keyspace))
    named, skipped = await asyncio.to_thread(_named, specs, tokens)
    answers = [
        await prefixes_of(views, others, identity, hashes, None)
        for hashes in {id(hashes): hashes for hashes in named.values() if hashes}.values()
    ]
    items = [one for answer in answers for one in answer.items if bytes.fromhex(one.keyspace) in named]
    unanswered = {one.master: one for answer in answers for one in answer.unanswered}
    return TextPrefixes(
        tokens=len(tokens),
        items=sorted(items, key=lambda one: (-one.blocks, one.keyspace)),
        skipped=skipped,
        unanswered=list(unanswered.values()),
    )


def _specs(parts: MasterParts, identity: Identity, keyspace: str | None) -> dict[bytes, KeyspaceSpec]:
    tables = chained_tables(parts, identity, keyspace)
    return {digest: next(iter(shards.values())).spec for digest, shards in tables.items()}


def _named(
    specs: dict[bytes, KeyspaceSpec], tokens: list[int]
) -> tuple[dict[bytes, list[bytes]], list[Skipped]]:
    """Hashes of the prompt in each keyspace; those of one recipe are made once."""
    made: dict[tuple[object, ...], list[bytes]] = {}
    named: dict[bytes, list[bytes]] = {}
    skipped: list[Skipped] = []
    for digest, spec in specs.items():
        facts = dict(spec.identity)
        recipe = (
            *(facts.get(name) for name in ("hash_algorithm", "hash_seed", "hash_tokens", "adapter")),
            spec.block_tokens,
        )
        try:
            if recipe not in made:
                made[recipe] = hashes_of(spec, tokens)
            named[digest] = made[recipe]
        except NotSupported as error:
            skipped.append(Skipped(keyspace=digest.hex(), reason=str(error.facts["reason"])))
    return named, skipped
