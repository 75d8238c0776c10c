"""From nothing to an endpoint as the docs say, without torch; deploy/ holds what the program takes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from shutil import which
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from semcal.calibration.watch import PromiseWatch
from semcal.cli import options as opt
from semcal.cli.app import COMMANDS, app
from semcal.cli.serve_command import ServeOptions, _settings
from semcal.reply_log import ReplyLog
from semcal.serve.configuration import admits
from semcal.servers.settings import is_loopback
from tests.cli.invoking import write
from tests.serve.serving import SANG, WROTE, running
from tests.servers import fake_model
from tests.servers.fake_server import FakeServer
from tests.steps.made_up_calibration import calibration
from tests.test_light_core import COMMAND
from tests.test_readme import headings_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@pytest.mark.skipif(which("curl") is None, reason="needs curl")
def test_five_commands_lead_to_a_calibrated_endpoint_without_torch(tmp_path: Path) -> None:
    """As they stand in the docs, but for what installs and what serves the model; SIGTERM ends it well."""
    (block,) = re.findall(r"^```text\n(pip install .*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    commands = block.replace("\\\n", "").splitlines()
    assert [line.split()[0] for line in commands] == ["pip", "llama-server", "semcal", "semcal", "curl"]
    rows = [
        {"id": f"{name} {n}", "question": name, "answers": [next(iter(answers))]}
        for n in range(3)
        for name, answers in fake_model.ANSWERS.items()
    ]
    write(tmp_path / "labelled.jsonl", rows)
    program = tmp_path / "semcal"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "light.py"} "$@"\n')
    program.chmod(0o755)
    (tmp_path / "light.py").write_text(COMMAND)
    port = free_port()
    with FakeServer() as server:
        script = "\n".join(commands[2:]).replace("openai:http://127.0.0.1:8080/v1#my-model", server.name)
        script = script.replace("semcal serve", f"semcal serve --port {port}").replace(":8000", f":{port}")
        script = script.replace("semcal calibrate", "semcal calibrate --m 4 --quiet")
        script = script.replace('"my-model"', json.dumps(server.quirks.models[0]))
        done = subprocess.run(
            ["bash", "-euc", f"trap 'kill $(jobs -p)' EXIT\n{script}\ntrap - EXIT\nkill $!\nwait $!"],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SEMCAL_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert "serve: every answer abstains" in done.stderr  # of so few labels
    learnt, reply = map(json.loads, done.stdout.splitlines())
    assert learnt["m"] == 4
    assert 0 <= reply["semcal"]["confidence"] <= 1
    assert ReplyLog(tmp_path / "replies.sqlite").reply(reply["id"]) is not None


# ---- deploy/


def dockerfile() -> dict[str, list[str]]:
    """What follows each instruction of the last stage, in the order of the file."""
    text = re.sub(r"\\\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for line in text.rpartition("\nFROM ")[2].splitlines()[1:]:
        if line and not line.startswith("#"):
            name, _, words = line.partition(" ")
            found.setdefault(name, []).append(words)
    return found


def compose() -> dict[str, Any]:
    return YAML(typ="safe").load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def parsed(command: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command of semcal, with its settings; the command is not run."""
    group: Any = typer.main.get_command(app)
    program, name, *arguments = command
    assert program == "semcal"
    options = group.commands[name].make_context(name, arguments).params
    function = resolve_name(f"semcal.cli.{COMMANDS[name][0]}")
    given = {option for option, value in options.items() if value not in (None, False)}
    return opt.with_settings(name, function, options, options["config"] or (), given)


def test_the_image_says_that_it_is_well_while_it_answers() -> None:
    (health,) = dockerfile()["HEALTHCHECK"]
    command = json.loads(health.partition("CMD ")[2])
    command[0] = sys.executable
    with running() as server:
        command[-1] = command[-1].replace("http://127.0.0.1:8000", server.url)
        assert subprocess.run(command, check=False).returncode == 0
    assert subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 1


def test_compose_starts_semcal_by_options_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMCAL_SERVE_KEYS", "a-key-of-sixteen-letters")
    services = compose()["services"]
    (entrypoint,) = map(json.loads, dockerfile()["ENTRYPOINT"])
    options = parsed([*entrypoint, *services["semcal"]["command"]])
    names = {name: options[name] for name in ServeOptions.__dataclass_fields__}
    settings = _settings(ServeOptions(**names))
    assert not is_loopback(settings.host)
    assert admits(settings.keys, "a-key-of-sixteen-letters")
    assert services["semcal"]["stop_grace_period"] == f"{settings.grace + 10:g}s"
    learning = services["calibrate"]
    learnt = parsed([*learning["entrypoint"], *learning["command"]])
    assert learnt["model"] == options["model"]
    assert str(learnt["out"]) == options["calibration"]
    host, _, name = re.fullmatch(r"openai:http://(\w+):(\d+)/v1#(.*)", options["model"]).groups()
    assert services[host]["command"][services[host]["command"].index("--alias") + 1] == name


def test_alerts_read_metrics_that_there_are_and_name_the_page_that_helps() -> None:
    rules = YAML(typ="safe").load((DEPLOY / "prometheus-rules.yaml").read_text(encoding="utf-8"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    with running(log=None, watch=PromiseWatch.of(calibration(), risk=0.1)) as server:
        for text in (WROTE, SANG):
            server.chat(text)
        metrics = server.get("/metrics").text
    names = set(re.findall(r"^(semcal_\w+)", metrics, flags=re.MULTILINE))
    source = "".join(path.read_text() for path in (ROOT / "src/semcal/serve").glob("*.py"))
    for alert in alerts:
        used = set(re.findall(r"semcal_\w+", alert["expr"]))
        assert used <= names, alert["alert"]
        for outcomes in re.findall(r'outcome=~?"([^"]*)"', alert["expr"]):
            known = [f'"{outcome}"' in source for outcome in outcomes.split("|")]
            assert all(known), alert["alert"]
        assert alert["for"]
        assert alert["labels"]["severity"] in ("warning", "critical")
        page, _, heading = alert["annotations"]["docs"].partition("#")
        assert heading in headings_of(ROOT / page)
        assert alert["annotations"]["summary"]
    tested = (DEPLOY / "prometheus-rules.test.yaml").read_text(encoding="utf-8")
    assert all(f"alertname: {alert['alert']}\n" in tested for alert in alerts)
    assert "semcal_alarm 0.0" in metrics.splitlines()
