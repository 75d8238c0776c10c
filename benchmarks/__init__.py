"""Benchmarks, one module each: all by `python -m benchmarks`, one by `python -m benchmarks.NAME`.

A module has `main()`, which prints Markdown. One with `results()`, which returns rows as flat dicts of one
set of keys, has them printed as a table and kept in runs/bench.json.
"""
