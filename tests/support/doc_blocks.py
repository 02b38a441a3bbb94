"""Code blocks of Markdown pages, and the commands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SHELLS = {"sh", "bash", "shell", "console"}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language and its text."""

    language: str
    text: str


def named(path: Path) -> str:
    """A page's name from the root of the repository."""
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """All blocks of a page in order."""
    return [Block(language, text) for language, text in _BLOCK.findall(page.read_text())]


def commands_in(text: str) -> list[str]:
    """The commands of a shell block: comments left out, lines that belong together joined. In a console's block
    only lines after a `$`."""
    text = re.sub(r"(^|\s)# .*", "", text)
    text = re.sub(r"'[^']*'", lambda quoted: re.sub(r"\n\s*", " ", quoted[0]), text)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [re.sub(r"\s{2,}", " ", line) for line in lines if line]


def commands(page: Path) -> list[str]:
    """Every command of a page."""
    return [
        command for block in blocks(page) if block.language in SHELLS for command in commands_in(block.text)
    ]
