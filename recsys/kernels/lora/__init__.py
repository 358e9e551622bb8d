"""Low-rank corrections of a layer, each row's by its own adapter, in one launch."""
