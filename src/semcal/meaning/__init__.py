"""The answer in a generation, and which answers mean the same."""
