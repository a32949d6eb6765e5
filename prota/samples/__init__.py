"""Sample clips: excerpts of freely licensed films and photographs, with captions and sources, in the folder clips."""
