"""The files of a library: where they are, what is in them, and how they are read, written and kept small."""
