"""The demo's prompt, shaped as a coding agent's: instructions, tools and files first, then a growing conversation.

All that comes before a question is equal in every turn, which is what a pool of prefixes lives on.
"""

from __future__ import annotations

import json
from importlib import resources

QUESTIONS = (
    "Which function turns text such as 4GB into a number of bytes?",
    "At which block positions do the boundaries of a run lie?",
    "What does the frame reader do with a length over its limit?",
)

_INSTRUCTIONS = """\
You are a coding agent that works in one repository. Read the files below before you answer.
Rules:
1. Answer the last question only, in one or two short sentences, and name the file that you used.
2. Quote names of functions and constants exactly as they are written.
3. When the files do not say it, answer that the files do not say it. Never invent an interface.
4. Ask for a tool only where reading is not enough. One call a message, arguments as JSON.
5. Never change a file that was not named by the person you work for.
6. Keep units last in names, and keep every wait and every queue bounded.
"""
_FILES = ("units.py", "runs.py", "framing.py")


def _tool(name: str, description: str, **parameters: str) -> dict[str, object]:
    return {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {
                parameter: {"type": "string", "description": text} for parameter, text in parameters.items()
            },
            "required": list(parameters),
        },
    }


TOOLS = (
    _tool("read_file", "Returns the text of one file.", path="path from the root of the repository"),
    _tool("search", "Lists the lines that match.", pattern="a regular expression", folder="where to look"),
    _tool("edit_file", "Replaces text in one file.", path="the file", old="text to find", new="text to put"),
    _tool("run_tests", "Runs tests and returns the last lines.", selection="an expression that picks tests"),
)


def system_prompt() -> str:
    """Instructions, tools and files: some 2,000 tokens."""
    schemas = resources.files("moonpool.schemas")
    files = "\n".join(f"### schemas/{name}\n{(schemas / name).read_text()}" for name in _FILES)
    tools = "\n".join(json.dumps(tool) for tool in TOOLS)
    return f"{_INSTRUCTIONS}\n## Tools\n{tools}\n\n## Files\n{files}"


def messages(turn: int, answers: list[str]) -> list[dict[str, str]]:
    """The chat of turn 0, 1 or 2: earlier questions with `answers` to them, then this turn's question."""
    chat = [{"role": "system", "content": system_prompt()}]
    for question, answer in zip(QUESTIONS[:turn], answers, strict=True):
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return [*chat, {"role": "user", "content": QUESTIONS[turn]}]
