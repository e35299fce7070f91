from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pasta_async.evals import packed_training

if TYPE_CHECKING:
    from pathlib import Path

SMALL = (
    "--documents 2 --prompt-tokens 40 --chunk-tokens 12 --rounds 1 --row-tokens 256 --repeats 1 --warmup 0"
)


def test_both_forms_train_on_the_same_targets(tmp_path: Path) -> None:
    out = tmp_path / "steps.jsonl"
    packed_training.main([*SMALL.split(), "--threads", "1", "--out", str(out)])
    where, packed, unpacked = [json.loads(line) for line in out.read_text().splitlines()]
    assert packed["targets"] == unpacked["targets"]
    assert packed["tokens of views"] == unpacked["tokens of views"] == unpacked["tokens computed"]
    assert where["sharing"] == unpacked["tokens computed"] / packed["tokens computed"] > 1.5
    assert packed["ms a step"] > 0 and where["speedup"] > 0
    assert where["settings"]["rounds"] == 1
