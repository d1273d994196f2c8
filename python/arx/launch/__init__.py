"""How ranks come to be: `detect` finds this process's place in a job, `run` starts a job.

    detect   whose variables are set, what is missing       run      `arx run`
      ├─ place      what there is to know                     └─ guard    two processes: each cleans up after the other
      ├─ families   the variables of each launcher                └─ keeper   signals, the first failure, all ends
      ├─ master     where ranks of several hosts meet                 ├─ ranks    ranks of this host
      ├─ slurm      its short forms                                   │    └─ spawn, tree
      └─ agreement  what MPI's ranks tell each other                  └─ hosts    ranks of several hosts; on each runs
           └─ pmi   how to talk to MPICH and Intel MPI                     └─ agent   over ssh, speaking in frames

    command   what each rank executes      share    which ranks are on which host, and what they are told
    output    whole lines, prefixes        report   which rank failed first, and how
    blame     how ranks say whom they lost

Nothing here knows the core, numpy or any collective: a launcher starts in milliseconds and cannot fail with them.
"""
