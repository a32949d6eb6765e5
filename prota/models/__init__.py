"""The models that come with the package, a folder each."""
