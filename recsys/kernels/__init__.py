"""GPU kernels: each has a reference in plain PyTorch, the kernel and the op that picks one."""
