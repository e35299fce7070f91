"""The form of Dockerfile and compose.yaml. No engine runs them here: what they name must exist, and fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from pasta_async.backends import open_backend
from pasta_async.backends.sglang.command import server_command
from pasta_async.options import Settings
from pasta_async.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]

Instruction = tuple[str, str]


class Form(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class Healthcheck(Form):
    test: list[str]
    interval: str = Field(pattern=r"^\d+[sm]$")
    timeout: str = Field(pattern=r"^\d+[sm]$")
    retries: int
    start_period: str = Field(pattern=r"^\d+[sm]$")


class Service(Form):
    image: str
    build: str | None = None
    command: list[str] = []
    environment: dict[str, str] = {}
    volumes: list[str] = []
    ports: list[str] = []
    profiles: list[str] = []
    secrets: list[str] = []
    depends_on: dict[str, dict[str, str]] = {}
    deploy: dict[str, Any] = {}
    healthcheck: Healthcheck | None = None
    ipc: str | None = None
    restart: str
    stop_grace_period: str | None = None
    read_only: bool = False
    cap_drop: list[str] = []
    security_opt: list[str] = []


class Secret(Form):
    file: str


class Compose(BaseModel):
    services: dict[str, Service]
    secrets: dict[str, Secret]


@pytest.fixture(scope="module")
def compose() -> Compose:
    return Compose.model_validate(yaml.safe_load((ROOT / "compose.yaml").read_text()))


@pytest.fixture(scope="module")
def instructions() -> list[Instruction]:
    return [*_instructions((ROOT / "Dockerfile").read_text())]


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest


def _all(instructions: list[Instruction], word: str) -> list[str]:
    return [rest for name, rest in instructions if name == word]


def _variables(text: str) -> set[str]:
    return set(re.findall(r"\bPASTA_[A-Z_]+", text))


KNOWN = {f"PASTA_SERVER_{name}".upper() for name in ServerSettings.model_fields} | {
    f"PASTA_{name}".upper() for name in Settings.model_fields
}


def test_every_instruction_of_the_dockerfile_is_one(instructions: list[Instruction]) -> None:
    words = [word for word, _ in instructions]
    known = "FROM WORKDIR COPY RUN ENV USER EXPOSE HEALTHCHECK ENTRYPOINT CMD"
    assert set(words) == set(known.split())
    assert words[0] == "FROM"
    assert (words.count("ENTRYPOINT"), words.count("CMD"), words.count("HEALTHCHECK")) == (1, 1, 1)


def test_the_image_is_pinned_small_and_not_run_by_root(instructions: list[Instruction]) -> None:
    for image in _all(instructions, "FROM"):
        assert re.fullmatch(r"python:3\.\d+-slim( AS build)?", image)
    [user] = _all(instructions, "USER")
    assert user not in ("root", "0")
    names = [word for word, _ in instructions]
    assert names.index("USER") > max(at for at, name in enumerate(names) if name == "RUN")
    for command in _all(instructions, "RUN"):
        assert "sudo" not in command
        assert ("pip" not in command) or ("--no-cache-dir" in command)
    for word in ("ENTRYPOINT", "CMD"):  # as lists, or a shell would swallow SIGTERM
        [command] = _all(instructions, word)
        assert isinstance(yaml.safe_load(command), list)


def test_what_the_dockerfile_copies_is_there_and_not_ignored(instructions: list[Instruction]) -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    assert all((ROOT / name).exists() for name in kept)
    needed = {"pyproject.toml", "README.md", "LICENSE", "pasta_async", "constraints.txt"}
    needed |= {link.readlink().name for link in (ROOT / "pasta_async").iterdir() if link.is_symlink()}
    needed |= {folder.name for folder in ROOT.glob("pasta_async*") if folder.is_dir()}
    assert needed <= set(kept)
    for sources in _all(instructions, "COPY"):
        if not sources.startswith(("--from", ".")):
            assert any(fnmatch(sources.split()[0], name) for name in kept)


def test_the_variables_are_known() -> None:
    named = _variables((ROOT / "Dockerfile").read_text()) | _variables((ROOT / "compose.yaml").read_text())
    assert named
    assert named <= KNOWN


def test_an_address_that_others_reach_has_a_key(compose: Compose, instructions: list[Instruction]) -> None:
    assert any("PASTA_SERVER_HOST=0.0.0.0" in value for value in _all(instructions, "ENV"))
    server = compose.services["server"]
    [name] = server.secrets
    assert server.environment["PASTA_SERVER_API_KEYS_FILE"] == f"/run/secrets/{name}"
    assert name in compose.secrets
    assert all(port.startswith("127.0.0.1:") for port in server.ports)
    assert all(not service.ports for other, service in compose.services.items() if other != "server")


def test_the_engines_have_the_flags_that_suit_pasta(compose: Compose) -> None:
    command = compose.services["engine"].command
    assert command[:3] == ["python3", "-m", "sglang.launch_server"]
    for flag in server_command("a/model", device="cuda").reasons:
        assert f" {flag} " in f" {' '.join(command)} "
    assert compose.services["engine"].image == "lmsysorg/sglang:${SGLANG_TAG:-v0.5.23}"


async def test_the_server_finds_the_engine(compose: Compose) -> None:
    url = compose.services["server"].environment["PASTA_BACKEND"]
    url = url.removeprefix("${PASTA_BACKEND:-").rstrip("}")
    assert re.sub(r"^http://|:30000$", "", url) in compose.services
    await open_backend(url).aclose()
    for service in compose.services["server"].depends_on:
        assert compose.services[service].healthcheck


def test_the_server_has_the_time_to_drain(compose: Compose) -> None:
    server = compose.services["server"]
    drain = float(server.environment["PASTA_SERVER_DRAIN_SECONDS"])
    assert server.stop_grace_period is not None
    assert float(server.stop_grace_period.rstrip("s")) > drain
