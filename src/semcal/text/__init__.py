"""Answers as text: first answer, normal form, numbers, values, names."""
