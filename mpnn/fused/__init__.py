"""torch's fused attention over all pairs: its launches, its derivatives, and what is added to its scores."""
