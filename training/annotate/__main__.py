"""`python -m pasta_async.training.annotate`; see `annotator`."""

from pasta_async.training.annotate.annotator import main

if __name__ == "__main__":
    main()
