"""The engine: exact attention with a shared prefix, trees of drawn tokens, and drawing from them."""
