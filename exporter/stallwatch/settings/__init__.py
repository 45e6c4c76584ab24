"""Where the configuration comes from, and when it comes again."""
