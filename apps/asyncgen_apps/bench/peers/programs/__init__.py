"""Programs that answer requests with one library each, in an environment for that library.

They are started by path (``python protocol.py vllm:Engine 2``) and import only their library.
:mod:`protocol` defines the operations of a program and their messages.
"""
