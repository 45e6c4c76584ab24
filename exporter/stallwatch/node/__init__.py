"""What this node looks like from outside: its processes, their files, their sockets."""
