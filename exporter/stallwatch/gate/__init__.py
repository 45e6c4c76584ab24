"""Who may ask the exporter, over which connection, and how much at once."""
