"""Bring a library up to date with folders: find files, decide which are new, read and encode them, commit."""

from prota.library.indexing.options import IndexOptions, IndexReport

__all__ = ["IndexOptions", "IndexReport"]
