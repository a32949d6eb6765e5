"""Which captions belong to which videos, where the videos lie, and whether all is well with them."""
