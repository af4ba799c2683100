"""Timings beside the public implementations of the same computation: ``python -m benchmarks.run``."""
