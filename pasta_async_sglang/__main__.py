"""Check that the plug-in fits an SGLang: the installed one, or a release, which pip downloads.

    python -m pasta_async_sglang [VERSION]

If it does not fit, the exit status is 1, and the missing parts are printed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from pasta_async_sglang.fit import misfits


def main() -> int:
    """Check, print the result, and return the exit status."""
    given = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        problems = misfits(_downloaded(given[0], Path(folder)) if given else _installed())
    sys.stdout.write("\n".join(problems or ["the hooks fit"]) + "\n")
    return 1 if problems else 0


def _installed() -> Path:
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        raise SystemExit("SGLang is not installed here; name a version")
    return Path(spec.origin).parent


def _downloaded(version: str, folder: Path) -> Path:
    command = [*(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"), f"sglang=={version}"]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith("sglang/srt/")])
    return folder / "sglang"


if __name__ == "__main__":
    raise SystemExit(main())
