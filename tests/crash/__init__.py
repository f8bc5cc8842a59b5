"""The crash proof: the agent killed at each state-changing system call, and what is left looked at from outside."""
