"""The command line as a process: Ctrl-C, pipes, terminals, a missing extra."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.helpers.cli_program import CAUSES, INTRO
from tests.helpers.project_files import ROOT

PROGRAM = """
import pasta_async.client
from pasta_async.cli import main
from pasta_async.clock import REAL_CLOCK
from pasta_async.testing import Fault, ScriptedBackend
from tests.helpers.cli_program import scripted
pasta_async.client.open_backend = lambda *_, **__: {}
main()
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "LINES": "40", "TERM": "xterm"}
TEA = "茶葉 \x1b[2J\x9b31m\a is\b tea."
STALLING = PROGRAM.format('scripted(Fault(2, 3, "stall"))')
ANSWERING = PROGRAM.format(f"ScriptedBackend({TEA!r}, clock=REAL_CLOCK)")
SO_FAR = INTRO + CAUSES + " The outcome"


def read_until(descriptor: int, wanted: str) -> str:
    """Read until a text has come; the test's own time limit ends a wait in vain."""
    read = b""
    while wanted.encode() not in read:
        piece = os.read(descriptor, 4096)
        assert piece, read.decode()
        read += piece
    return read.decode()


@contextmanager
def start(*options: str, stdout: int = subprocess.PIPE) -> Generator[subprocess.Popen[str]]:
    """The program with a model that falls silent in the second chunk; it does not outlive the test."""
    command = [sys.executable, "-c", STALLING, "generate", "x", *options]
    with subprocess.Popen(
        command, stdout=stdout, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_ends_a_stream_with_the_text_so_far() -> None:
    with start() as process:
        assert process.stdout
        so_far = read_until(process.stdout.fileno(), SO_FAR)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert process.returncode == 130
    assert so_far + rest == SO_FAR + " was\n"
    assert errors == "pasta-async: interrupted\n"


def test_ctrl_c_ends_the_live_view_and_gives_the_terminal_back() -> None:
    screen, terminal = pty.openpty()
    with start("--live", stdout=terminal) as process:
        os.close(terminal)
        drawn = read_until(screen, "1 causes")
        process.send_signal(signal.SIGINT)
        after = read_until(screen, CAUSES.strip())
        while b"?25h" not in after.encode():  # the cursor is shown again
            after += os.read(screen, 4096).decode()
        _, errors = process.communicate()
    os.close(screen)
    assert process.returncode == 130
    assert "2 outcome" in drawn + after
    assert errors == "pasta-async: interrupted\n"


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    with start() as process:
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        errors = process.stderr.read()
        assert process.wait() == 1
    assert errors == ""


def finished(shell: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program with a model that answers, as "$@" of a line of shell."""
    return subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", ANSWERING, *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
    )


def test_a_character_that_the_output_does_not_have_ends_no_answer() -> None:
    text = finished('"$@"', "generate", "x", PYTHONIOENCODING="ascii")
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout == TEA.encode("ascii", "replace").decode() + "\n"
    whole = finished('"$@"', "generate", "x", "--json", PYTHONIOENCODING="ascii")
    assert json.loads(whole.stdout)["text"] == TEA


def test_control_characters_of_an_answer_reach_a_pipe_but_no_terminal() -> None:
    assert finished('"$@"', "generate", "x").stdout == TEA + "\n"
    for options in ([], ["--json"]):
        screen, terminal = pty.openpty()
        command = [sys.executable, "-c", ANSWERING, "generate", "x", *options]
        subprocess.run(command, env=ENVIRONMENT, stdout=terminal, check=True)
        os.close(terminal)
        shown = read_until(screen, "tea.")
        os.close(screen)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.replace("\r\n", "\n"))


@pytest.mark.parametrize(
    ("shell", "arguments"),
    [
        ('"$@" > /dev/full', ["generate", "x"]),
        ('echo "<sync/>" | "$@" > /dev/full', ["check", "-"]),
    ],
)
def test_output_that_fails_is_told_in_words(shell: str, arguments: list[str]) -> None:
    done = finished(shell, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("pasta-async: ")
    assert done.stderr.count("\n") == 1


def test_without_its_extra_it_says_what_to_install() -> None:
    program = f"import sys; sys.modules['rich'] = None\n{ANSWERING}"
    command = [sys.executable, "-c", program, "generate", "x", "--live"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'pasta_async[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
