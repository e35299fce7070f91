"""`python -m pasta_async.training.synthetic`; see `records`."""

from pasta_async.training.synthetic.records import main

if __name__ == "__main__":
    main()
