"""Attention over listed edges and long convolutions compiled by numba: jobs, vector lanes, the passes, and the
Functions of them."""
