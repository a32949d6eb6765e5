"""A library of one's own videos: indexing, storing, searching."""
