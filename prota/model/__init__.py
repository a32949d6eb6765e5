"""The model, its folder, its weights and its relevance."""
