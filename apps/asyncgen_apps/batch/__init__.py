"""Answer a file of requests on the shared batch, and go on after an interruption."""
