"""The HTTP API and the page for searching a library in a browser."""
