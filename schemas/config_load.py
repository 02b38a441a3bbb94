"""Fills a settings model: defaults < file < environment < flags, remembering where each value came from.

file         JSON or TOML, one flat table of the model's fields; a table named as the kind ("[node]") wins over
             the top level, so that one file can serve a master and a node
environment  MOONPOOL_<FIELD>, and MOONPOOL_<KIND>_<FIELD>, which wins
flags        the caller's mapping; None means not given

An unknown key of a file, or an unknown MOONPOOL_* variable, is an error that names the nearest valid one:
a misspelt setting must never be a default in disguise.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from moonpool.schemas.config import ClientSettings, ConnectorSettings, MasterSettings, NodeSettings, Settings
from moonpool.schemas.errors import ConfigError

KINDS: dict[str, type[Settings]] = {
    "master": MasterSettings,
    "node": NodeSettings,
    "client": ClientSettings,
    "connector": ConnectorSettings,
}
ENVIRONMENT_PREFIX = "MOONPOOL_"
OTHER_VARIABLES = frozenset({"MOONPOOL_AS_MOONCAKE", "MOONPOOL_CONFIG", "MOONPOOL_NATIVE", "MOONPOOL_SOAK"})
"""Variables of ours that are no setting: Mooncake's module name, the CLI's settings file, loops in Python, the long tests."""
COMMAND_LINE = "command line"
FILE_BYTES_MAX = 1 << 20

_KUBERNETES = re.compile(r"MOONPOOL_\w*?(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*)")

SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[SettingsT]):
    """Settings, and for each field the words that name its source ("default", "pool.toml", "command line", ...)."""

    settings: SettingsT
    origins: Mapping[str, str]


def load(
    model: type[SettingsT],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded[SettingsT]:
    """The settings of one process. Raises ConfigError with source, field, value and what is allowed."""
    kind = kind_of(model)
    values: dict[str, object] = {}
    origins = dict.fromkeys(model.model_fields, "default")

    def take(source: str, name: str, value: object) -> None:
        values[name] = value
        origins[name] = source

    if file is not None:
        for name, value in read_file(file, kind, model).items():
            take(str(file), name, value)
    for variable, name, text in read_environment(environment or {}, kind, model):
        take(variable, name, text)
    for name, value in (flags or {}).items():
        if value is not None:
            _require_known(name, model.model_fields, COMMAND_LINE)
            take(COMMAND_LINE, name, value)
    return Loaded(build(model, values, origins), origins)


def kind_of(model: type[Settings]) -> str:
    """ "master", "node", "client" or "connector"."""
    return next(kind for kind, known in KINDS.items() if known is model)


def build(
    model: type[SettingsT], values: Mapping[str, object], origins: str | Mapping[str, str]
) -> SettingsT:
    """The model from plain values. `origins`: source of all, or of each field. Raises ConfigError for the first bad one."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        source = origins if isinstance(origins, str) else origins.get(name, "settings")
        if first["type"] == "extra_forbidden":
            raise _unknown(name, model.model_fields, source) from None
        problem = f"is {_shown(name, model, first['input'])}; {_allowed(first, model.model_fields.get(name))}"
        raise ConfigError(source=source, field=name, problem=problem) from None


def read_table(file: Path) -> dict[str, object]:
    """The top-level table of a JSON or TOML file. Raises ConfigError."""
    source = str(file)
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigError(source=source, field="file", problem=f"is over {FILE_BYTES_MAX} bytes")
        text = raw.decode()
        table = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError(source=source, field="file", problem=f"can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # both parsers' errors, and UnicodeDecodeError
        kind = "TOML" if file.suffix == ".toml" else "JSON (the name of a TOML file ends in .toml)"
        raise ConfigError(source=source, field="file", problem=f"isn't {kind}: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(
            source=source, field="file", problem=f"holds a {type(table).__name__}; a table is expected"
        )
    return table


def read_file(file: Path, kind: str, model: type[Settings]) -> dict[str, object]:
    """The values that a file sets for one kind. Every key of every kind's table is checked, not only ours."""
    values: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {}
    for key, value in read_table(file).items():
        if key in KINDS and isinstance(value, dict):
            for name in value:
                _require_known(name, KINDS[key].model_fields, f"{file} [{key}]")
            sections[key] = value
        else:
            _require_known(key, [*_all_fields(), *KINDS], str(file))
            if key in model.model_fields:
                values[key] = value
    return values | sections.get(kind, {})


def read_environment(
    environment: Mapping[str, str], kind: str, model: type[Settings]
) -> list[tuple[str, str, str]]:
    """(variable, field, text) of what the environment sets, the more exact name last."""
    known = _variables()
    environment = {name: text for name, text in environment.items() if not _from_kubernetes(name, text)}
    for variable in environment:
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known | OTHER_VARIABLES:
            raise _unknown(variable, sorted(known), "environment")
    found = []
    for prefix in (ENVIRONMENT_PREFIX, f"{ENVIRONMENT_PREFIX}{kind.upper()}_"):
        for name in model.model_fields:
            variable = prefix + name.upper()
            if variable in environment:
                found.append((variable, name, environment[variable]))
    return found


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The valid name that a misspelt one most likely meant."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _from_kubernetes(name: str, text: str) -> bool:
    """A Service called moonpool puts variables of its own into every pod: MOONPOOL_PORT=tcp://10.0.0.1:50051."""
    return bool(_KUBERNETES.fullmatch(name)) or (
        name.endswith("_PORT") and text.startswith(("tcp://", "udp://"))
    )


def _all_fields() -> list[str]:
    return sorted({name for model in KINDS.values() for name in model.model_fields})


def _variables() -> frozenset[str]:
    names = {ENVIRONMENT_PREFIX + name.upper() for name in _all_fields()}
    for kind, model in KINDS.items():
        names |= {f"{ENVIRONMENT_PREFIX}{kind.upper()}_{name.upper()}" for name in model.model_fields}
    return frozenset(names)


def _require_known(name: str, known: Iterable[str], source: str) -> None:
    names = list(known)
    if name not in names:
        raise _unknown(name, names, source)


def _unknown(name: str, known: Iterable[str], source: str) -> ConfigError:
    names = list(known)
    guess = nearest(name, names)
    hint = f"did you mean {guess}?" if guess else f"known are {', '.join(names)}"
    return ConfigError(source=source, field=name, problem=f"is not a setting; {hint}")


def _shown(name: str, model: type[Settings], value: object) -> str:
    """The value for people, unless the field is one that mustn't be shown."""
    field = model.model_fields.get(name)
    return "a hidden value" if field is not None and not field.repr else repr(value)[:200]


def _allowed(error: Any, field: FieldInfo | None) -> str:
    if error["type"] == "literal_error" and field is not None:
        return "allowed: " + ", ".join(str(choice) for choice in get_args(field.annotation))
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return "allowed: " + str(error["msg"]).removeprefix("Input should be ")
