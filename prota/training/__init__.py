"""How a model learns: batches in, checkpoints out, the same on one device or many."""
