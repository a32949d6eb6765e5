"""Search a library: from a text or a clip to its best moments."""
