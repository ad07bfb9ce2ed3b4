"""``bench peers``: this library beside what its users would pick instead, on one machine.

``rows`` says what is measured, ``contenders`` who is, ``programs`` how each is made to answer,
``field`` keeps their processes, ``rounds`` lets them answer in turn, ``tables`` makes figures
readable and ``report`` puts them on the terminal, into files and into a picture.
"""
