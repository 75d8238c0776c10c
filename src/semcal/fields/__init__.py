"""Structured answers: schemas, the fields of sampled documents, and their correctness.

`schema` reads a JSON Schema, `documents` reads samples and finds the document that they agree on, and `rows`
does both for rows of files.
"""
