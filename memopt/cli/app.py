"""The application that verbs are added to, how it starts, and how it ends."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import Annotated

import typer

from .. import __version__
from .outcome import Exit, debug_wanted, want_debug
from .printing import print_error

app = typer.Typer(
    help="Fit PyTorch training into memory, as a YAML file says.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def main() -> None:
    """Run the command line. As with ``python -m``, modules in the current directory can be imported."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    if "--debug" in sys.argv[1:]:  # wherever it stands
        sys.argv.remove("--debug")
        want_debug(wanted=True)
    with open(os.devnull, "w") as nowhere:
        # Python has no stream where the shell closed it: what is said is for nobody, and the exit code tells.
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
        for stream in (sys.stdout, sys.stderr):  # a terminal may not have every character of a path
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            try:
                app()
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # the reader has gone, as in `| head`
            _drop_output()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename is not None:
                raise
            _drop_output()
            print_error(f"writing the result failed: {error.strerror}.")
    sys.exit(Exit.ERROR)  # otherwise the command has exited by itself


def _drop_output() -> None:
    """Let Python write what is left to nowhere when it ends, instead of failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"memopt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of what failed. May stand anywhere.")] = False,
) -> None:
    want_debug(wanted=debug or debug_wanted())
    if not debug_wanted():  # torch logs what memopt tells in a message of its own, with tracebacks
        logging.getLogger("torch").setLevel(logging.CRITICAL)
