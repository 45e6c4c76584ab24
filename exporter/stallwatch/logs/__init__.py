"""What a log says: followed as it grows, cut into lines, read for how far the server is."""
