"""One file per signal; nothing is imported here, so that a worker loads only the file it needs."""
