"""Tools for developers of the project, which are not in the wheel."""
