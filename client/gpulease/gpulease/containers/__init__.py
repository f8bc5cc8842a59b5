"""``gpulease docker run``: an engine's own command line, with a slice of a GPU in it."""
