r"""AlpacaEval: how often a judge prefers the parallel answer to the sequential one.

    python -m pasta_async.evals.alpaca --backend http://127.0.0.1:30000 --prompts alpaca_eval.jsonl \
        --difficulty difficulty.csv --judge https://api.example.com/v1 --judge-model NAME --out results/alpaca

Answers come through `pasta_async.Client`; the judging is AlpacaEval's own package in a process of its own.
Nothing is fetched: prompts and difficulties are files that you name, the judge is a server that you name.
"""
