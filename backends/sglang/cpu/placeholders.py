"""Inert modules in the place of the GPU packages that SGLang imports at its top.

With a small Llama-like model in float32 and torch's own attention, SGLang never calls into them: it only
needs `import triton` and `@triton.jit` to pass. Whatever would really run one raises instead, so that a
missing kernel is never silently wrong. Packages that are installed are left alone.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PACKAGES", "PlaceholderFinder", "install"]

PACKAGES = ("torchvision", "torchaudio", "triton", "sgl_kernel", "flashinfer")

_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",  # else SGLang does not see a CPU as a device
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


class _Class:
    """Base of placeholder classes: may be subclassed and built (as decorators do), not called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _missing(type(self).__name__)

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


class _Function:
    """A placeholder callable: decorates, with or without arguments, and refuses to run."""

    def __init__(self, name: str, wrapped: Callable[..., Any] | None = None) -> None:
        self.__name__ = name
        self._wrapped = wrapped

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._wrapped is not None:
            raise _missing(self.__name__)
        if len(args) == 1 and not kwargs and callable(args[0]):
            return _Function(getattr(args[0], "__name__", self.__name__), args[0])
        return _Function(self.__name__)

    def __getitem__(self, grid: Any) -> _Function:
        return self  # kernel[grid](...)

    def __getattr__(self, name: str) -> Any:
        return _attribute(self.__name__, name)

    def __or__(self, other: Any) -> Any:
        return other  # annotations such as `tl.constexpr | int`

    __ror__ = __or__


class _Module(types.ModuleType):
    __version__ = "0.0.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        value = _attribute(self.__name__, name)
        setattr(self, name, value)
        return value


def _attribute(parent: str, name: str) -> Any:
    full = f"{parent}.{name}"
    if name.startswith("__"):
        raise AttributeError(name)
    if full.startswith("triton.runtime.driver"):
        # Probes for a device must fail here, as the real package does without a GPU.
        raise RuntimeError("there is no triton driver on this machine")
    if full in sys.modules:
        return sys.modules[full]
    return type(name, (_Class,), {"__module__": parent}) if name[:1].isupper() else _Function(full)


def _missing(name: str) -> RuntimeError:
    return RuntimeError(f"{name} needs a GPU package that is not installed; SGLang runs on placeholders here")


class PlaceholderFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds placeholder modules under some top-level names."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for the packages and everything below them."""
        if fullname.partition(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A placeholder module."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def install() -> None:
    """Put placeholders where a package is missing, and tell SGLang to use the CPU. Does nothing twice.

    To be called before anything of SGLang is imported, in each of its processes.
    """
    if any(isinstance(finder, PlaceholderFinder) for finder in sys.meta_path):
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _settle_transformers()
    missing = frozenset(name for name in PACKAGES if importlib.util.find_spec(name) is None)
    sys.meta_path.append(PlaceholderFinder(missing))
    if "sgl_kernel" in missing:
        importlib.import_module("pasta_async.backends.sglang.cpu.seeded").register()


def _settle_transformers() -> None:
    """Let transformers cache its honest 'not installed' before a placeholder answers."""
    probes = importlib.import_module("transformers.utils.import_utils")
    for name in (*PACKAGES, "torchvision_v2"):
        probe = getattr(probes, f"is_{name}_available", None)
        if probe is not None:
            probe()
