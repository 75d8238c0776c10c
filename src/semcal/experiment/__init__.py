"""Runs: settings, store, evaluation of methods on data sets."""
