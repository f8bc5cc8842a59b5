"""Share the AMD GPUs of one node among Slurm jobs, containers and any HTTP client."""

__version__ = "0.1.0"
