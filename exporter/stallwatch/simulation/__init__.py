"""Stand-ins for what a node without GPUs lacks, so that incidents can be played on any machine."""
