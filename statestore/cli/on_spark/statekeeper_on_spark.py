"""The application that `spark-submit` starts: `statekeeper`, in the driver of a cluster.

It has a folder of its own, because Spark puts that folder first on the path of Python.
"""

from statekeeper.statestore.cli import main
from statekeeper.statestore.maintenance.executors.submit import write_messages_to_stderr

if __name__ == "__main__":
    write_messages_to_stderr()
    main()
