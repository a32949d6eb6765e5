"""Processes and threads that work beside the caller: decoders that may crash, and reading ahead."""
