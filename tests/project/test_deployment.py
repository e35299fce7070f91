"""The form of Dockerfile and compose.yaml. No engine runs them here: what they name must exist, and fit."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import Any

import yaml

from pasta_async.backends import open_backend
from pasta_async.backends.sglang.command import server_command
from pasta_async.options import Settings
from pasta_async.server.settings import ServerSettings
from tests.helpers.project_files import ROOT

DOCKERFILE, COMPOSE = (ROOT / "Dockerfile").read_text(), (ROOT / "compose.yaml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE)["services"]
WITH_VLLM: dict[str, Any] = yaml.safe_load((ROOT / "compose.vllm.yaml").read_text())["services"]


def instructions(word: str) -> list[str]:
    """The instructions of the Dockerfile with this word."""
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    parts = [line.partition(" ") for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()]
    return [rest for name, _, rest in parts if name == word]


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    copied = [rule[1:] for rule in rules if rule.startswith("!")]
    assert all((ROOT / name).exists() for name in copied)
    needed = {"pyproject.toml", "README.md", "LICENSE", "pasta_async", "constraints.txt"}
    needed |= {link.readlink().name for link in (ROOT / "pasta_async").iterdir() if link.is_symlink()}
    needed |= {folder.name for folder in ROOT.glob("pasta_async*") if folder.is_dir()}
    assert needed <= set(copied)
    for sources in instructions("COPY"):
        if not sources.startswith(("--from", ".")):
            assert any(fnmatch(sources.split()[0], name) for name in copied)


def test_the_variables_are_known() -> None:
    named = set(re.findall(r"\bPASTA_[A-Z_]+", DOCKERFILE + COMPOSE))
    variables = {f"PASTA_SERVER_{name}".upper() for name in ServerSettings.model_fields}
    assert named and named <= variables | {f"PASTA_{name}".upper() for name in Settings.model_fields}


def test_the_engine_has_the_flags_that_suit_pasta() -> None:
    command = SERVICES["engine"]["command"]
    assert command[:3] == ["python3", "-m", "sglang.launch_server"]
    for flag in server_command("a/model", device="cuda").reasons:
        assert f" {flag} " in f" {' '.join(command)} "
    assert SERVICES["engine"]["image"] == "lmsysorg/sglang:${SGLANG_TAG:-v0.5.23}"


async def test_the_server_finds_the_engine_and_has_the_time_to_drain() -> None:
    server = SERVICES["server"]
    url = server["environment"]["PASTA_BACKEND"].removeprefix("${PASTA_BACKEND:-").rstrip("}")
    assert re.sub(r"^http://|:30000$", "", url) in SERVICES
    await open_backend(url).aclose()
    assert all(SERVICES[name]["healthcheck"] for name in server["depends_on"])
    drain = float(server["environment"]["PASTA_SERVER_DRAIN_SECONDS"])
    assert float(server["stop_grace_period"].rstrip("s")) > drain
    assert "vllm:http://engine:30000" in WITH_VLLM["server"]["environment"]["PASTA_BACKEND"]
