"""Libraries of videos: storage, indexing and search."""
