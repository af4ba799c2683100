"""Hugging Face's transformers: converted models, and neighbourhoods as attention implementations."""

from mpnn.interop.transformers.hook import register

__all__ = ["register"]
