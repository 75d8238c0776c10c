"""One module for each command of `semcal`."""
