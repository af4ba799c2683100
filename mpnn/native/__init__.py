"""Attention over listed edges compiled by numba: jobs of rows, vector lanes, the passes, and the Function of them."""
