from __future__ import annotations

import json
from pathlib import Path

from pasta_async.evals.report import ReportSettings, digits, main, markdown_table, write_page
from tests.helpers.commands_run import failed, write_rows


def test_a_page_has_all_texts_and_their_first_tables(tmp_path: Path) -> None:
    table = markdown_table([{"engine": "local", "tokens/s": 10.5}, {"engine": "other", "tokens/s": 3.0}])
    (tmp_path / "speed.md").write_text(f"Both engines:\n\n{table}\n\nlocal is faster.\n\n{table}\n")
    (tmp_path / "note.md").write_text("Not measured here.")
    rows = [
        {"benchmark": "speed"},
        {"environment": {"cpu": "slow"}},
        {},
        {"environment": {"cpu": "fast"}},
        {},
    ]
    write_rows(tmp_path / "speed.jsonl", rows)
    for _ in range(2):  # the page is no measurement
        write_page(ReportSettings(folder=tmp_path))
    page = (tmp_path / "results.md").read_text()
    assert "local is faster." in page and "Not measured here." in page and "| speed | fast |" in page
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "environments": {"speed": {"cpu": "fast"}},
        "tables": {"speed": [{"engine": "local", "tokens/s": "10.5"}, {"engine": "other", "tokens/s": "3"}]},
    }


def test_numbers_have_three_digits_or_all_before_the_point() -> None:
    assert [digits(value) for value in (0.12345, 999.4, 999.7, 12345.6)] == ["0.123", "999", "1000", "12346"]


def test_a_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.md").write_text("Not measured here.")
    assert "has no table" in failed(main, str(tmp_path))
