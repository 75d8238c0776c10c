"""Runs of the paper's grid: settings, blocks, analyses and the report."""
