"""`python -m pasta_async` is `pasta-async`."""

from pasta_async.cli import main

if __name__ == "__main__":
    main()
