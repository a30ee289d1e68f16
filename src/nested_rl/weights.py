"""The bases' weights on machines: where they lie, and that they are the ones that were recorded."""
