"""A recipe's models fitted and measured on prepared arrays, with torch, numpy and safetensors."""
