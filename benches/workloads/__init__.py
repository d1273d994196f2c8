"""What the ranks of every library execute (`rank.py` starts it): one module per collective, one per library.

`method.py` times, `with_<library>.py` has one method per collective that yields the forms of its call, and
`<collective>.py` knows the values. None of them may import arx, mpi4py or torch, except the one that is named after it.
"""
