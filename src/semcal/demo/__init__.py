"""The embedded world: Atlas, its generator, its training and its small weights."""
