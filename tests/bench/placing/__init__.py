"""How well leases are placed, replayed on the agent's own code: `python -m tests.bench.placing`."""
