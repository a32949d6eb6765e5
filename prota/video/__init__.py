"""Video files: finding, decoding, sampling and resizing."""
