"""Work that outgrows one machine, on Ray: indexing and search over the machines of a cluster. Needs the extra `ray`."""
