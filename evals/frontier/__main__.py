"""`python -m pasta_async.evals.frontier`: see `measuring`."""

from __future__ import annotations

from pasta_async.evals.frontier.measuring import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
