"""Tensors and maths: models, layers, retrieval, training and evaluation."""
