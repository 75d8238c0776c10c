"""What makes the embedded world's models: `python -m tools.atlas.train`."""
