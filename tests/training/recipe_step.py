"""A step of a plan, for tests: pieces of work, one line each, from those on that are there already.

`python -m recipe_step --out DIR --pieces 3 --hold FIFO --at 2`: waits for a writer of FIFO before piece 2.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    """Do what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--input", type=Path)
    parser.add_argument("--hold", type=Path)
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--fail")
    parser.add_argument("--nothing")
    parser.add_argument("--threads")
    parser.add_argument("--model")
    options = parser.parse_args()
    work = options.out / "work"
    done = len(work.read_text().splitlines()) if work.exists() else 0
    for piece in range(done, options.pieces):
        if options.hold and piece == options.at:
            print("holding", flush=True)
            options.hold.read_text()
        with work.open("a") as file:
            file.write(f"{piece}\n")
    if options.fail:
        raise SystemExit(options.fail)
    if not options.nothing:
        made = options.input.read_text() if options.input else ""
        (options.out / "result").write_text(f"{made}{options.pieces}")


if __name__ == "__main__":
    main()
