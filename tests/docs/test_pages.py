"""What pages claim and a program can check: arithmetic, configurations, an index that misses none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.doc_blocks import PAGES, ROOT, blocks, commands, named

from moonpool.connector.extra_config import read_extra_config
from moonpool.schemas.config_load import KINDS
from moonpool.schemas.metrics import ENGINE_METRICS, MASTER_METRICS, NODE_METRICS
from moonpool.store_client.doctor.findings import CHECKS

DOCS = ROOT / "docs"


def configurations(page: Path) -> list[dict[str, Any]]:
    """Every kv_transfer_config of a page: JSON blocks, and arguments of commands."""
    texts = [block.text for block in blocks(page) if block.language == "json"]
    texts += [
        text for command in commands(page) for text in re.findall(r"--kv-transfer-config '([^']*)'", command)
    ]
    return [json.loads(text) for text in texts]


def ours(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The connectors of ours in it, inside a MultiConnector too."""
    inner = config.get("kv_connector_extra_config", {}).get("connectors", [])
    return [one for one in [config, *inner] if one.get("kv_connector") == "MoonpoolStoreConnector"]


PAGES_WITH_CONFIGURATIONS = [page for page in PAGES if configurations(page)]


@pytest.mark.parametrize("page", PAGES_WITH_CONFIGURATIONS, ids=named)
def test_connector_configurations_can_be_read(page: Path) -> None:
    for config in configurations(page):
        assert config["kv_load_failure_policy"] == "recompute"
        assert config["kv_role"] in {"kv_both", "kv_producer", "kv_consumer"}
        assert ours(config)
        for connector in ours(config):
            read_extra_config(connector.get("kv_connector_extra_config", {}), environment={})


def test_sizes_are_computed_right() -> None:
    section = (DOCS / "operations.md").read_text().split("a test computes the last three columns")[1]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.split("\n\n")[1].splitlines()[2:]
    ]
    assert len(rows) >= 4
    for model, *cells in rows:
        layers, values, width, a_token = (int(cell.replace(",", "")) for cell in cells[:4])
        assert layers * values * width == a_token, model
        assert cells[4] == f"{a_token * 100_000 / 1e9:.1f} GB", model
        assert cells[5] == f"{(1 << 40) / a_token / 1e6:.1f} million", model


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name


def test_troubleshooting_names_every_check_of_the_doctor() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    assert [check for check in CHECKS if f"`{check}`" not in text] == []


def test_metrics_that_pages_name_exist() -> None:
    known = {*MASTER_METRICS, *NODE_METRICS, *ENGINE_METRICS}
    for page in PAGES:
        named_here = set(re.findall(r"`((?:vllm:)?moonpool_[a-z_]+)`", page.read_text()))
        assert named_here <= known, page.name


def test_settings_that_pages_name_exist() -> None:
    """Words in code font that look like a setting with a value: `name: value`, `name = value`, `name=value`."""
    known = {name for model in KINDS.values() for name in model.model_fields}
    for name in ("vllm.md", "operations.md", "troubleshooting.md", "rdma.md"):
        text = re.sub(r"```.*?```", "", (DOCS / name).read_text(), flags=re.DOTALL)
        for found in re.findall(r"`([a-z]+_[a-z_]+)(?:: | = |=)[^`]*`", text):
            assert found in known, f"{name}: {found}"


def test_the_operations_page_says_what_to_do_for_each_alert() -> None:
    text = (DOCS / "operations.md").read_text()
    files = sorted((ROOT / "helm" / "moonpool" / "files").glob("*.yaml"))
    rules = [
        rule
        for file in files
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
    ]
    alerts = [rule["alert"] for rule in rules if "alert" in rule]
    assert alerts
    section = text.split("## 6. Alerts")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(alerts)


def test_anchors_lead_to_headings() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text()):
            if target.startswith("https://"):
                continue
            text = ((page.parent / target) if target else page).read_text()
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name}: {target}#{anchor}"


def test_lines_of_the_log_that_pages_quote_are_said_somewhere() -> None:
    """A symptom that can't be searched for is no help."""
    code = "\n".join(
        path.read_text()
        for folder in ("connector", "schemas", "store_client")
        for path in (ROOT / folder).rglob("*.py")
    )
    code = re.sub(r'"\n\s*f?"', "", code)  # strings over two lines
    section = (DOCS / "troubleshooting.md").read_text().split("## A process doesn't start")[1].split("## ")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(quoted) >= 6
    for text in [*quoted, "the pool is not used"]:
        for part in filter(None, (part.strip() for part in text.split("..."))):
            known = re.sub(r"\bwanted, /dev/shm has\b", "wanted, {folder} has", part)
            assert known in code, part
