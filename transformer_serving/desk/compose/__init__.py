"""What the compose files can be told, and the files that are made from that one table."""
