"""`python -m semcal` is the command line."""

from semcal.cli import main

main()
