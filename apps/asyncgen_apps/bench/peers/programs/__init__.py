"""Programs that answer requests with one library each, every one in an environment of its own.

They are started by path (``python protocol.py vllm:Engine 2``) and import nothing but the library
that they are about: :mod:`protocol` says what a program can do and how it is spoken to.
"""
