"""`pasta-async generate --html FILE`."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner, Result
from written import CAUSES, TEXT, scripted

from pasta_async import Backend
from pasta_async.cli.app import app
from pasta_async.clock import REAL_CLOCK
from pasta_async.testing import ScriptedBackend


def generate(*arguments: str | Path, backend: Backend | None = None) -> Result:
    words = ["generate", *map(str, arguments)]
    return CliRunner().invoke(app, words, obj=backend or scripted(), catch_exceptions=False)


def test_the_page_beside_the_text(tmp_path: Path) -> None:
    page = tmp_path / "answer.html"
    result = generate("Why <b>?", "--compare", "--html", page)
    assert result.exit_code == 0
    assert result.stdout.startswith(TEXT + "\n")
    html = page.read_text("utf-8")
    assert "Why &lt;b&gt;?" in html
    assert f'<span data-thread="1">{CAUSES}</span>' in html
    assert "<!--" not in html


def test_the_page_loads_nothing_and_holds_hostile_text_as_text(tmp_path: Path) -> None:
    page = tmp_path / "answer.html"
    backend = ScriptedBackend("</script><script>alert(1)</script><!--", clock=REAL_CLOCK)
    assert generate("</script>", "--html", page, backend=backend).exit_code == 0
    html = page.read_text("utf-8")
    assert "alert(1)</script>" not in html
    assert re.findall(r"<script[^>]*>", html) == [
        '<script type="application/json" id="data">',
        "<script>",
        "<script>",
    ]
    assert not re.search(r'(src|href)=|@import|url\(|https?://(?!www\.w3\.org/2000/svg")', html)


def test_a_file_that_cannot_be_is_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    backend = scripted()
    result = generate("x", "--html", tmp_path, backend=backend)
    assert result.exit_code == 2
    assert f"--html: {tmp_path}" in result.stderr
    result = generate("x", "--html", tmp_path / "missing" / "file", backend=backend)
    assert result.exit_code == 2
    assert str(tmp_path / "missing") in result.stderr
    assert not backend.requests
