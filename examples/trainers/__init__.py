"""One short training in each framework: stopped in the middle of an epoch, it goes on there.

From the repository's root, with RUN a directory for shards, checkpoint and ledger:

    python -m examples.trainers.parts RUN
    torchrun --nproc-per-node 2 -m examples.trainers.ddp RUN --stop-after 5
    torchrun --nproc-per-node 2 -m examples.trainers.ddp RUN

`with_ray` starts its own processes: python -m examples.trainers.with_ray RUN --stop-after 5.
"""
