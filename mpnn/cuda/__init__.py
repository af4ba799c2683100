"""For CUDA: the passes of graph attention in Triton, and where a rule's pairs are blocks for FlexAttention."""
