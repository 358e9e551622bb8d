"""The tensors' side of the data: ragged batches, sequences on disk, order, masks, strings."""
