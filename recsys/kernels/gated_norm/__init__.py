"""Layer norm, gate and dropout of an HSTU layer in one pass."""
