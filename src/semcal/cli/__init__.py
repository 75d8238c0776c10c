"""The command line: `semcal COMMAND`. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


#: The order of sums in NumPy depends on the number of threads; waiting threads must not spin; messages of
#: transformers are replaced by our own.
_SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TRANSFORMERS_VERBOSITY": "error",
}


def main() -> None:
    """Run the command line."""
    for name, value in _SETTINGS.items():  # before the libraries that read it are imported
        os.environ.setdefault(name, value)
    _replace_closed_streams()
    try:
        from semcal.cli.app import run_app

        run_app()
    except KeyboardInterrupt:  # before a command has started
        sys.exit(130)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the cleanup of Python


def _replace_closed_streams() -> None:
    """Replace closed streams (<&-) by /dev/null, like GNU's stdopen, so that no file takes their numbers."""
    for name, flag in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flag), "r" if name == "stdin" else "w"))
