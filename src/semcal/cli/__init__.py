"""The command line: `semcal COMMAND`. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


#: numpy's products add up in another order with each number of threads; waiting threads are not to spin;
#: what transformers has to say is said in our words.
_SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TRANSFORMERS_VERBOSITY": "error",
}


def main() -> None:
    """Run the command line."""
    for name, value in _SETTINGS.items():  # before the libraries are there to read it
        os.environ.setdefault(name, value)
    _replace_closed_streams()
    try:
        from semcal.cli.app import run_app

        run_app()
    except KeyboardInterrupt:  # before there was a command to end
        sys.exit(130)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends what Python still clears up


def _replace_closed_streams() -> None:
    """Put /dev/null where a stream was closed (<&-), as GNU's stdopen does, so that no file takes its number.

    To read from stdin, or to write to stdout, is then the system's error; messages alone are lost.
    """
    for name, flag in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flag), "r" if name == "stdin" else "w"))
