"""Training data: one format of records, its readers, the leakage filter, and lengths in tokens.

    for record in read_records("data.jsonl"):
        record.messages, record.document, record.scores

`python -m pasta_async.training.corpus` turns a file or a data set into this format and leaves out what would
leak evaluation prompts. Nothing here needs torch; docs/data.md describes it.
"""

from pasta_async.training.corpus.leakage import LeakageFilter
from pasta_async.training.corpus.records import Record, plain_record, read_records, write_records
from pasta_async.training.corpus.sources import read_prompts, read_source
from pasta_async.training.corpus.tokens import critical_path, recount, rough_tokens, text_speedup

__all__ = [
    "LeakageFilter",
    "Record",
    "critical_path",
    "plain_record",
    "read_prompts",
    "read_records",
    "read_source",
    "recount",
    "rough_tokens",
    "text_speedup",
    "write_records",
]
