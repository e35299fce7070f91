"""Recipes: everything that makes models and compares them, as a plan of steps that goes on where it stopped.

`schema` says what a recipe is, `reading` reads one, `plan` makes steps of it, `execution` runs them.
`python -m pasta_async.training.run` does all of it.
"""
