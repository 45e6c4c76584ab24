"""What is remembered of each part of a server from one look to the next."""
