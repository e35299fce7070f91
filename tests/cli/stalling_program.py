"""`pasta-async` with a model that falls silent inside the second chunk; run by test_process.py."""

from written import scripted

from pasta_async.cli import main
from pasta_async.testing import Fault

if __name__ == "__main__":
    main(backend=scripted(Fault(2, 3, "stall")))
