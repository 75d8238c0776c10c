"""Extraction of the answer from a generation, and rules that compare two answers."""
