"""From a prompt and its parameters to a request: everything that is refused is refused here."""
