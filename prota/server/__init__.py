"""The library in a browser: an API and a page."""
