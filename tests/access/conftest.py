"""What the tests of access share: tokens, certificates, and a pool that demands them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop
from support.guarded import Certificates, write_tokens

uvloop.run(asyncio.sleep(0))  # its first loop opens descriptors that stay


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this module."""
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def tokens_file(folder: Path) -> Path:
    """The tokens of support.guarded."""
    return write_tokens(folder / "tokens.json")


@pytest.fixture(scope="module")
def certificates(folder: Path) -> Certificates:
    """Of a CA of this module's own."""
    return Certificates(folder)
