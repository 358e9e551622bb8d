"""A published table run again from prepared arrays, with torch, numpy and safetensors alone."""
