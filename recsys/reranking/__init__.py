"""One ranked list in, the shown list out: diversity, calibration, caps, exploration."""
