"""Clients, good and bad, for a server that runs as a process of its own."""
