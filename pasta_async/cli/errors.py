"""Errors of `pasta-async` as a line on stderr and an exit code, and text from files."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from pasta_async.errors import InvalidRequestError, PastaError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["fail", "read_text", "reported_errors"]


def fail(message: str, *, code: int = 1) -> NoReturn:
    """Say on stderr what is wrong and leave."""
    sys.stderr.write(f"pasta-async: {message}\n")
    raise typer.Exit(code)


@contextmanager
def reported_errors() -> Generator[None]:
    """Turn the errors that a user can do something about into a line on stderr and an exit code."""
    try:
        yield
    except InvalidRequestError as error:
        fail(str(error), code=2)
    except (PastaError, ModuleNotFoundError) as error:
        fail(str(error))


def read_text(name: str) -> str:
    """The text of a file; `-` is standard input."""
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        fail(f"{name}: {error.strerror or error}")
    except UnicodeDecodeError as error:
        fail(f"{name}: not UTF-8 at byte {error.start}")
