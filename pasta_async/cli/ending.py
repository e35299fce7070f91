"""How every command of the project ends: what its user can mend is a line, not a traceback."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pasta_async.errors import PastaError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["ending"]


@contextmanager
def ending(*also: type[Exception], resumes: bool = False) -> Generator[None]:
    """Run a command in this, or decorate its `main` with it.

    A `PastaError` ends the process with status 1 and its name and message on stderr, Ctrl-C with status 130.

    Args:
        also: Other errors that the user can mend.
        resumes: Whether the same command goes on after Ctrl-C, which is then said.

    Raises:
        SystemExit: In place of these.
    """
    try:
        yield
    except (PastaError, *also) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted" + "; the same command goes on" * resumes + "\n")
        sys.exit(130)
