"""Print what each server says whose address is given."""

from __future__ import annotations

import sys

import httpx

for word in sys.argv[1:]:
    print(httpx.get(word).text if word.startswith("http") else word)
