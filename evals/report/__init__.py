"""One page from results: quality against speed-up, realised against theoretical, load, timelines, tables.

    python -m pasta_async.evals.report results/alpaca/result.json speed.jsonl --out report
    python -m pasta_async.evals.report "lambda 8=8/result.json" "lambda 8=8/speed.jsonl" chat=2/result.json

Takes what pasta_async.evals.alpaca, task, speed, methods and load wrote, and answers that `pasta-async
generate --json` printed. Results with the same label are of the same model: one gives the quality, the other
the speed. Writes `index.html`, which needs nothing else, its plots as PNG files, its tables as `tables.md`.
"""
