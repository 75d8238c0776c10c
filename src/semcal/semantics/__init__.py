"""Formulas of semantic confidence on arrays: measures, entropies, clusters from a relation."""
