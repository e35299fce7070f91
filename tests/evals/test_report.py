"""The report: every kind of result on one page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from commands_run import refused, run
from made_up_results import write_results

from pasta_async import InvalidRequestError
from pasta_async.evals.report.__main__ import main
from pasta_async.evals.report.plots import Point, best_points
from pasta_async.evals.report.results import read_results
from pasta_async.training.statistics import format_estimate

if TYPE_CHECKING:
    from pathlib import Path

    from pasta_async.training.statistics import Estimate

pytestmark = pytest.mark.timeout(300)
"""Drawing takes eight seconds of CPU, on a machine that may be busy."""

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def report(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    names = [f"lambda 8={files['alpaca']}", f"lambda 8={files['speed']}", f"<i>fast</i>={files['fast']}"]
    others = [files[kind] for kind in ("frontier", "ifeval", "load")]
    run(main, "", *names, *others, "--out", out)
    return out


def test_plots_are_files_too(report: Path) -> None:
    found = {path.stem: path.read_bytes() for path in report.glob("*.png")}
    assert {"quality-by-speed", "frontier", "load-load-open", "load-load-closed"} < {*found}
    assert all(content.startswith(PNG) for content in found.values())


def test_tables_are_markdown(report: Path) -> None:
    text = (report / "report.md").read_text()
    assert "| lambda 8 | 60 | 52.5 (49.5 to 55.5) | 51.5 (48.5 to 54.5) |" in text
    assert "| frontier | 16 | 93.8 (" in text
    assert "## ifeval, ifeval" in text
    assert "| parallel - baseline | - | +10.0 (+5.0 to +15.0), at least +6.0 |" in text
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def estimate(value: float) -> Estimate:
    return {"value": value, "low": value, "high": value}


def test_no_point_of_the_frontier_is_beaten_by_another() -> None:
    pairs = {"a": (1.0, 50.0), "b": (1.4, 52.0), "c": (1.4, 51.0), "d": (2.0, 45.0), "e": (1.9, 44.0)}
    found = [Point(name, estimate(x), estimate(y), measured=True) for name, (x, y) in pairs.items()]
    assert [point.label for point in best_points(found)] == ["b", "d"]


def test_a_speed_up_that_was_timed_takes_the_place_of_the_theoretical_one(
    files: dict[str, Path], report: Path
) -> None:
    (found,) = read_results([str(files["speed"])]).clocks.values()
    clock = format_estimate(found, ".2f")
    rows = (report / "report.md").read_text().splitlines()
    assert [row.endswith(f"| {clock} |") for row in rows if "| made-up judge |" in row] == [True, False]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", "[1]"),
        ("a.json", "{"),
        ("a.json", '{"benchmark": "beauty"}'),
        ("a.jsonl", '{"benchmark": "speed"}\n{"prompt": 1}'),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidRequestError, match=re.escape(name)):
        read_results([str(tmp_path / name)])


def test_two_results_of_a_kind_need_two_labels(files: dict[str, Path]) -> None:
    with pytest.raises(InvalidRequestError, match="LABEL=PATH"):
        read_results([f"a={files['alpaca']}", f"a={files['fast']}"])


@pytest.mark.parametrize("kind", ["speed", "load"])
def test_a_run_that_was_broken_off_is_not_reported(files: dict[str, Path], tmp_path: Path, kind: str) -> None:
    lines = files[kind].read_text().splitlines()
    (tmp_path / "part.jsonl").write_text("\n".join(lines[:-1]))
    with pytest.raises(InvalidRequestError):
        read_results([str(tmp_path / "part.jsonl")])


def test_what_cannot_be_read_ends_the_command_with_a_message(tmp_path: Path) -> None:
    assert "none.json cannot be read" in refused(main, "", tmp_path / "none.json")


def test_the_same_results_give_the_same_report(files: dict[str, Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(main, "", files["frontier"], "--out", tmp_path / name)
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two")
    )
    assert one == two
    assert len(one) > 1
