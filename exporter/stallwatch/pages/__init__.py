"""The parts of the status page, one file each; `status` puts them together."""
