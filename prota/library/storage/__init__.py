"""The storage of a library: location, schema, versions, reader and writer."""
