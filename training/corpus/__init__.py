"""Answers on their way from annotation to evaluation: one format, its readers, and what is measured of it.

    for record in read_records("data.jsonl"):
        record.messages, record.document, record.scores

`python -m pasta_async.training.corpus` turns a file or a data set into this format and leaves out what would
leak evaluation prompts. Nothing here needs torch; docs/data.md describes it.
"""

from pasta_async.training.corpus.leakage import LeakageFilter, Overlap
from pasta_async.training.corpus.record import Record, plain_record
from pasta_async.training.corpus.sources import read_prompts, read_source
from pasta_async.training.corpus.store import read_records, write_records
from pasta_async.training.corpus.tokens import critical_path, in_tens, recount, rough_tokens, text_speedup

__all__ = [
    "LeakageFilter",
    "Overlap",
    "Record",
    "critical_path",
    "in_tens",
    "plain_record",
    "read_prompts",
    "read_records",
    "read_source",
    "recount",
    "rough_tokens",
    "text_speedup",
    "write_records",
]
