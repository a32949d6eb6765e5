"""Captions and videos of benchmarks, their splits, the frame cache and training batches."""
