"""The documented beam scorers: they rank candidates and keep what is complete, in plain Python."""
