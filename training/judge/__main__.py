"""`python -m pasta_async.training.judge`; see `command`."""

from pasta_async.training.judge.command import main

if __name__ == "__main__":
    main()
