"""The command line: `semcal COMMAND`. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os

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
    from semcal.cli.app import app

    app(prog_name="semcal")
