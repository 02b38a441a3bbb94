"""Settings as the doctor takes them: what can't be used is a finding, and defaults stand in for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moonpool.schemas.config import ClientSettings, MasterSettings, NodeSettings
from moonpool.schemas.config_load import COMMAND_LINE, KINDS, SettingsT, load, nearest
from moonpool.schemas.errors import ConfigError
from moonpool.schemas.mooncake_config import load_mooncake_config
from moonpool.store_client.doctor.findings import Finding, broken, ok

MOONCAKE_VARIABLE = "MOONCAKE_CONFIG_PATH"


@dataclass(frozen=True, slots=True)
class Found:
    """The settings of each kind of process here, and what is wrong with their sources."""

    master: MasterSettings
    node: NodeSettings
    client: ClientSettings
    problems: tuple[str, ...]
    sources: tuple[str, ...]


def read_settings(file: Path | None, environment: Mapping[str, str], given: Mapping[str, object]) -> Found:
    """`given`: fields of any kind, from the command line. Raises ConfigError for one that no kind has."""
    known = {name for model in KINDS.values() for name in model.model_fields}
    for name in given:
        if name not in known:
            guess = nearest(name, known)
            problem = f"is not a setting; did you mean {guess}?" if guess else "is not a setting"
            raise ConfigError(source=COMMAND_LINE, field=name, problem=problem)
    problems = dict.fromkeys(
        problem
        for source in (file, environment)
        if source
        for model in KINDS.values()
        if (problem := _problem(model, source))
    )
    file_good = file is None or not any(_problem(model, file) for model in KINDS.values())
    good_environment = {} if any(_problem(model, environment) for model in KINDS.values()) else environment

    def take(model: type[SettingsT]) -> SettingsT:
        mine = {name: value for name, value in given.items() if name in model.model_fields}
        return load(
            model, file=file if file_good else None, environment=good_environment, flags=mine
        ).settings

    client = take(ClientSettings)
    mooncake = environment.get(MOONCAKE_VARIABLE)
    if mooncake:
        try:
            theirs = load_mooncake_config(Path(mooncake))
            client = client if "master" in given else client.model_copy(update={"master": theirs.master})
        except ConfigError as error:
            problems[str(error)] = None
    sources = [str(file)] * (file is not None) + [mooncake] * bool(mooncake)
    return Found(
        take(MasterSettings),
        take(NodeSettings),
        client.model_copy(update={"segment_size": 0}),
        tuple(problems),
        tuple(str(source) for source in sources),
    )


def check_settings(found: Found) -> list[Finding]:
    """One finding a problem."""
    if found.problems:
        advice = (
            "mend it: the process that reads it won't start; `moonpool config show KIND` lists what there is"
        )
        return [broken("config", problem, advice) for problem in found.problems]
    sources = ", ".join(found.sources) or "no file; defaults and the environment"
    return [ok("config", f"settings are good ({sources})")]


def _problem(model: type[SettingsT], source: Path | Mapping[str, str]) -> str:
    try:
        if isinstance(source, Path):
            load(model, file=source)
        else:
            load(model, environment=source)
    except ConfigError as error:
        return str(error)
    return ""
