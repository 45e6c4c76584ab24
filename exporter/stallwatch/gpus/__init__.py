"""What the GPU driver says, and where it lies."""
