"""What the agent knows without touching anything: no I/O, no clock, no environment, no logging."""
