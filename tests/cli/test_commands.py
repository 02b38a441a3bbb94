"""The command line: what it prints, where, and with which exit code it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import moonpool
from typer.testing import CliRunner

import moonpool as package
from moonpool import store_client
from moonpool.schemas import errors
from moonpool.schemas.config import NodeSettings
from moonpool.schemas.config_load import KINDS
from moonpool.schemas.errors import CODES, ConfigError, MoonpoolError
from moonpool.store_client.cli.failures import EXIT_CODES, FAILED, UNREACHABLE, USAGE, exit_code_of, explain
from moonpool.store_client.cli.main import app
from moonpool.store_client.cli.options import loaded, parsed
from moonpool.store_client.cli.serve import command

runner = CliRunner()


def moonpool_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moonpool.store_client.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
        check=False,
    )


def test_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "pydantic", "msgspec", "uvloop", "torch", "vllm"}
    code = f"import sys, moonpool.store_client.cli.main; sys.exit(str({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


def test_every_public_name_of_the_client_is_there() -> None:
    assert set(store_client.__all__) == store_client._HOMES.keys()
    for name in store_client.__all__:
        assert getattr(store_client, name).__name__ == name


def test_help_names_every_command() -> None:
    text = moonpool_command("--help").stdout
    for name in ("serve", "master", "node", "status", "demo", "bench", "config", "version"):
        assert f" {name} " in text
    assert "\x1b[" not in text


def test_version() -> None:
    assert package.__version__ in runner.invoke(app, ["version"]).stdout
    assert json.loads(runner.invoke(app, ["version", "--json"]).stdout)["moonpool"] == package.__version__


def test_config_show_says_where_a_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('token = "hush-hush"\nlanes = 3\n')
    shown = runner.invoke(
        app, ["config", "show", "client", "--config", str(file), "--json"], env={"MOONPOOL_LANES": "4"}
    )
    assert shown.exit_code == 0
    settings = json.loads(shown.stdout)
    assert settings["lanes"] == {"value": 4, "origin": "MOONPOOL_LANES"}
    assert settings["token"]["origin"] == str(file)
    assert "hush-hush" not in shown.stdout
    table = runner.invoke(app, ["config", "show", "node"]).stdout
    for name in NodeSettings.model_fields:
        assert name in table


def test_config_check(tmp_path: Path) -> None:
    good, bad, mooncake = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "mooncake.json"
    good.write_text('size = "1GB"\n[master]\nport = 1\n')
    bad.write_text("sise = 1\n")
    mooncake.write_text('{"master_server_address": "a:1", "metadata_server": "P2PHANDSHAKE"}')
    assert "good" in runner.invoke(app, ["config", "check", str(good)]).stdout
    assert "a:1" in runner.invoke(app, ["config", "check", "--mooncake", str(mooncake)]).stdout
    done = moonpool_command("config", "check", str(bad))
    assert done.returncode == USAGE
    assert done.stdout == ""
    assert f"{bad}: sise: is not a setting; did you mean size?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_misspelt_variable_stops_a_server_before_it_starts() -> None:
    done = moonpool_command("node", MOONPOOL_SISE="4GB")
    assert done.returncode == USAGE
    assert "did you mean MOONPOOL_SIZE?" in done.stderr


def test_set_takes_any_setting_and_a_flag_wins() -> None:
    found = loaded(
        NodeSettings,
        file=None,
        flags={"name": "flag", "size": None},
        assignments=["size=1MB", "name=set", "lanes-max=3"],
    )
    assert found.settings == NodeSettings(size=1 << 20, name="flag", lanes_max=3)
    assert found.origins["lanes_max"] == "command line"
    with pytest.raises(ConfigError, match="write NAME=VALUE"):
        parsed(["size"])
    with pytest.raises(ConfigError, match="did you mean lanes_max"):
        loaded(NodeSettings, file=None, flags={}, assignments=["lane_max=3"])


def test_a_child_gets_the_same_settings() -> None:
    settings = NodeSettings(size=5 << 20, prefault=False, high_watermark=0.5, name="a.b")
    words = command("node", settings, verbose=False)
    assignments = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert loaded(NodeSettings, file=None, flags={}, assignments=assignments).settings == settings


@pytest.mark.parametrize("kind", list(CODES.values()), ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code_that_is_documented(kind: type[MoonpoolError]) -> None:
    error = kind(wire="what happened")
    code = exit_code_of(error)
    assert code in EXIT_CODES
    assert code != 0
    assert (code == FAILED) == (kind is errors.InternalError)


def test_an_error_is_one_sentence_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(errors.RpcFailed(peer="a:1", reason="refused")) == UNREACHABLE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == "error -900: a:1: refused"
    assert "moonpool serve" in said.err


def test_completion_scripts() -> None:
    for shell in ("bash", "zsh", "fish"):
        script = moonpool("completion", shell)
        assert script.code == 0
        assert "_MOONPOOL_COMPLETE=complete_" in script.out
        assert shell in script.out
    assert moonpool("completion", "tcsh").code == USAGE


def test_bash_completes(tmp_path: Path) -> None:
    program = tmp_path / "moonpool"
    program.write_text(f"#!{sys.executable}\nfrom moonpool.store_client.cli.main import main\n\nmain()\n")
    program.chmod(0o755)
    script = f"""
        eval "$({program} completion bash)"
        for line in "moonpool dra" "moonpool ls n" "moonpool rm --dr" "moonpool config sh"; do
            COMP_WORDS=($line); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _moonpool_completion {program}
            echo "${{COMPREPLY[@]}}"
        done
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:-1] == ["drain", "nodes", "--dry-run", "show"]


def test_config_show_without_a_kind_shows_all() -> None:
    shown = moonpool("config", "show", "--json").json
    assert set(shown) == set(KINDS)
    assert shown["node"]["name"]["origin"] == "default"
    assert moonpool("config", "show").out.count("Settings of the ") == len(KINDS)


def test_config_check_as_json(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text("lane = 3\n")
    said = moonpool("config", "check", str(file), "--json")
    assert said.code == USAGE
    assert said.json["field"] == "lane"
    assert "did you mean lanes?" in said.json["problem"]
    file.write_text("lanes = 3\n")
    assert moonpool("config", "check", str(file), "--json").json == {"file": str(file), "good": True}


@pytest.mark.parametrize("command", [("bench", "exist", "--quick"), ("replay", "chat", "--requests", "1")])
@pytest.mark.parametrize("flag", ["--html", "--save"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    command: tuple[str, ...], flag: str, tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "nosuch" / "file"):
        said = moonpool(*command, flag, str(path))
        assert (said.code, said.out) == (USAGE, "")
        assert f"{flag} is" in said.err and "a file that can be written" in said.err


def test_replay_of_nothing_names_the_families() -> None:
    said = moonpool("replay", "nosuch")
    assert said.code == USAGE
    assert "agentic" in said.err


def output(*words: str, columns: str = "") -> str:
    environment = {"COLUMNS": columns} if columns else {}
    return moonpool_command("config", "show", *words, **environment).stdout


def test_tables_in_pipes_fit() -> None:
    for columns, widest in (("", 100), ("40", 40), ("70", 70)):
        lines = output("node", columns=columns).splitlines()
        assert max(map(len, lines)) <= widest
        assert not any(line.endswith(" ") for line in lines)


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    script = (
        f"{sys.executable} -m moonpool.store_client.cli.main config show | head -1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), (">/dev/full", FAILED)]
)
@pytest.mark.parametrize("command", ["version", "config show node", "config show --json"])
def test_nowhere_to_write_is_no_traceback(command: str, redirection: str, code: int) -> None:
    script = f"{sys.executable} -m moonpool.store_client.cli.main {command} {redirection}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_message_for_a_closed_stderr_does_not_go_to_stdout() -> None:
    script = f"{sys.executable} -m moonpool.store_client.cli.main config check /nowhere 2>&-"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (USAGE, "")
