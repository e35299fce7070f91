"""Reports: one page with plots and tables from results; `python -m pasta_async.evals.report --help`."""
