import numpy as np

import arx

with arx.init() as world:  # finds rank and size by itself; without a launcher it is a world of one
    x = np.full(3, world.rank + 1.0)  # every rank brings its own numbers
    arx.all_reduce(x)  # in place: now every rank has the sum of all

    gradient = arx.empty(100_000, np.float32)  # a numpy array in memory that the other ranks can read
    gradient[:] = world.rank
    arx.all_reduce(gradient, "avg")

    largest = arx.functional.all_reduce(1.5 * world.rank, "max")  # returns a new value, takes scalars too
    print(f"rank {world.rank} of {world.size}: sum {x}, average {gradient[-1]}, largest {largest}", flush=True)
