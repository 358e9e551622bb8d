"""Explanations: what of the history mattered, measured, and in words."""
