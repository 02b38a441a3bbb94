"""The connector's settings: `kv_connector_extra_config` over the environment over Mooncake's JSON file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from moonpool.schemas.config import ClientSettings, ConnectorSettings
from moonpool.schemas.config_load import build, load, nearest
from moonpool.schemas.errors import ConfigError
from moonpool.schemas.mooncake_config import CONFIG_PATH_VARIABLE, load_mooncake_config

SOURCE = "kv_connector_extra_config"


def read_extra_config(
    extra: Mapping[str, object], environment: Mapping[str, str] | None = None
) -> tuple[ConnectorSettings, ClientSettings]:
    """Both models from one flat table. Raises ConfigError that names a misspelt key and its nearest neighbour."""
    environment = os.environ if environment is None else environment
    known = [*ConnectorSettings.model_fields, *ClientSettings.model_fields]
    for name in extra:
        if name not in known:
            guess = nearest(name, known)
            hint = f"did you mean {guess}?" if guess else f"known are {', '.join(sorted(known))}"
            raise ConfigError(source=SOURCE, field=name, problem=f"is not a setting; {hint}")
    client: dict[str, object] = {}
    if environment.get(CONFIG_PATH_VARIABLE):
        client |= load_mooncake_config(environment=environment).model_dump(exclude_unset=True)
    client |= load(ClientSettings, environment=environment).settings.model_dump(exclude_unset=True)
    connector = load(ConnectorSettings, environment=environment).settings.model_dump(exclude_unset=True)
    client |= {name: extra[name] for name in ClientSettings.model_fields if name in extra}
    connector |= {name: extra[name] for name in ConnectorSettings.model_fields if name in extra}
    return build(ConnectorSettings, connector, SOURCE), build(ClientSettings, client, SOURCE)
