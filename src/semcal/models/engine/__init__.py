"""The sampling engine: exact attention with a shared prefix, trees of tokens, and the choice of tokens."""
