"""House rules about the files themselves."""

from __future__ import annotations

import re

from tests.helpers.project_files import ROOT, project_files

LONGEST_MODULE = 700

# Written in halves, so that this file keeps its own rule.
ELSEWHERE = re.compile(
    "|".join(
        (
            r"(?<![\w.:*-])/(?:work|root|tmp|home|opt)" + "/",
            r"\.\./" + "shared",
            "pypi" + r"\.org",
            "pytorch" + r"\.org/whl",
            "python" + "hosted",
            "file" + ":///",
        )
    )
)


def text_files() -> list[tuple[str, str]]:
    """Name and text of every file that git would publish and that is text."""
    files: list[tuple[str, str]] = []
    for name in project_files():
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and b"\0" not in (raw := path.read_bytes()):
            files.append((name, raw.decode("utf-8")))
    return files


def test_no_file_names_a_place_on_one_machine_or_a_package_registry() -> None:
    places = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if ELSEWHERE.search(line)
    ]
    assert places == []


def test_modules_stay_short() -> None:
    lengths = {name: text.count("\n") for name, text in text_files() if name.endswith(".py")}
    assert lengths
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}
