"""A fake kernel driver for AMD GPUs: Debian's unmodified ROCm runs on it, on a machine without any GPU."""
