"""Sparse products over edges in compressed rows, closed under differentiation."""
