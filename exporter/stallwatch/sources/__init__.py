"""What is read of a server once, when it stands still? One file per source; a worker imports only those it reads."""
