"""The command line. Each verb has a file; importing it here puts it into ``--help``, in this order.

Exit codes: 0, done; 1, an error; 2, warnings with ``--strict``, or a command that is not written as ``--help`` says.
Results go to standard output; errors, warnings and progress to standard error.
"""

from . import check, explain, estimate, report, graph, diff, verify, lock, schema, demo  # isort: skip
from .app import app, main

__all__ = ["app", "check", "demo", "diff", "estimate", "explain", "graph", "lock", "main", "report", "schema", "verify"]
