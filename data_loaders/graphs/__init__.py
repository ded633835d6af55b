"""Growing graphs as lists of edges: files, sets and random processes."""
