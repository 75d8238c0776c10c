"""Trains and writes the embedded equivalence model: whether two answers to one question mean the same."""
