"""Answers as text: normal form, numbers, values, names."""
