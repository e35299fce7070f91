"""Run a module of SGLang, unmodified, on a machine with no GPU stack.

``python tests/helpers/on_cpu.py sglang.launch_server --model-path MODEL ...`` is what ``python -m`` would be
elsewhere; SGLang was installed without its dependencies (requirements/sglang-cpu.txt). Its speed says nothing
about SGLang on a GPU. A program that imports SGLang itself imports this module first.

Inert modules take the place of the GPU packages that SGLang imports at its top. With a small Llama-like model
in float32 and torch's own attention, SGLang never calls into them: it only needs `import triton` and
`@triton.jit` to pass. Whatever would really run one raises instead, so that a missing kernel is never
silently wrong. Packages that are installed are left alone.

SGLang's processes are forked here. Each would be spawned, and then import everything again, which is two
thirds of a start. They load their plug-ins as spawned ones do.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any

PACKAGES = ("torchvision", "torchaudio", "triton", "sgl_kernel", "flashinfer")

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # what SGLang compiles of its sampler hangs without triton
}


class _Class:
    """Base of placeholder classes: may be subclassed, built and parametrized."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


class _Function:
    """A placeholder callable: decorates, with or without arguments; what it decorated refuses to run."""

    def __init__(self, name: str, *, decorated: bool = False) -> None:
        self.__name__ = name
        self._decorated = decorated

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._decorated:
            raise RuntimeError(
                f"{self.__name__} needs a GPU package that is not installed; SGLang runs on placeholders here"
            )
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        name = getattr(args[0], "__name__", self.__name__) if decorates else self.__name__
        return _Function(name, decorated=decorates)

    def __getitem__(self, grid: Any) -> _Function:
        return self  # kernel[grid](...)

    def __getattr__(self, name: str) -> Any:
        return _attribute(self.__name__, name)

    def __or__(self, other: Any) -> Any:
        return other  # annotations such as `tl.constexpr | int`

    __ror__ = __or__


class _Module(types.ModuleType):
    __version__ = "0.0.0"

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


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a placeholder for each of some packages, and for everything below them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _keep_forking(method: str | None, force: bool = False) -> None:
    """In place of `multiprocessing.set_start_method`, which SGLang calls with "spawn"."""


def _forget_plugins() -> None:
    """In a new process: have SGLang load the plug-ins, which it does once."""
    plugins: Any = sys.modules.get("sglang.srt.plugins")
    if plugins:
        plugins._plugins_loaded = False


def _install() -> None:
    """Put placeholders where a package is missing."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    probes = importlib.import_module("transformers.utils.import_utils")
    for name in (*PACKAGES, "torchvision_v2"):  # transformers keeps its honest "not installed"
        getattr(probes, f"is_{name}_available", bool)()
    sys.meta_path.append(_Finder([name for name in PACKAGES if importlib.util.find_spec(name) is None]))


_install()
if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = _keep_forking
    os.register_at_fork(after_in_child=_forget_plugins)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__")
