"""Indexing and search on a Ray cluster; needs the extra `ray`."""
