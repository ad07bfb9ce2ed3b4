"""``bench peers``: this library beside those that users would choose instead, on one machine.

``rows`` lists the workloads, ``contenders`` the libraries, and ``programs`` has the code that runs
each. ``processes`` starts and stops them, ``rounds`` lets them answer in turn, ``tables`` lays the
figures out, and ``report`` prints, writes and draws them.
"""
