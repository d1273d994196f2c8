"""How ranks come to be: `detect` finds this process's place in a job, `run` starts a job.

    detect   whose variables are set, what they say            pmi   asks MPICH's or Intel MPI's process manager
    run      `arx run`: the process that the user started
      └─ keeper     its child, parent of the ranks: signals, the first failure, the ends of all
           ├─ command   what each rank executes                 spawn   one rank: environment, cores, streams
           ├─ output    whole lines, prefixes, log files        tree    every descendant, and how to end them

Nothing here knows the core, numpy or any collective: a launcher starts in milliseconds and cannot fail with them.
"""
