"""GPU kernels; each has a reference in plain PyTorch, the kernel, and the operation that picks one."""
