"""Typed and validated settings of models, data and training, saved with every model and run."""
