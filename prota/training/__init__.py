"""Training: the loop, checkpoints, sources of data, distributed gradients and the ablation."""
