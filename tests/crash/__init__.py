"""The crash proof: the agent killed at each state-changing call, and what is left seen from outside."""
