"""Share clients, origins, limits, sockets and JSON parsing among the servers."""
