"""A step of a plan, for tests: writes what each server says whose address is given."""

from __future__ import annotations

import argparse
from pathlib import Path

import httpx

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--backend", action="append")
options = parser.parse_args()
options.out.write_text("\n".join(httpx.get(url).text for url in options.backend))
