"""A whole cluster in one thread: real controllers, and brokers' cores and shells, over a simulated store,
network, disks and clocks.

Everything that happens follows from a seed (`world.py`), so a failure can be repeated by its number: `make
sim FIRST_SEED=n SEEDS=1`. README.md describes the simulator.
"""
