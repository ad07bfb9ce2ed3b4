"""The applications on asyncgen: command line, benchmarks, servers."""
