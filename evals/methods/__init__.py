"""Ways to decode one answer in parallel, compared on the same engine, prompts and token counts.

`python -m pasta_async.evals.methods --help` runs them; each is a small strategy (`strategies`) on
what they share (`track`).
"""
