"""What the project's own people run: outside the wheel."""
