"""Many machines: what runs on a cluster of Ray. Nothing else in prota imports Ray."""
