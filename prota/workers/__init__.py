"""Worker processes for jobs that may hang or crash."""
