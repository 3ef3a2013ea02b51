"""Recipes: decoders as data with settings for several scales, the model they describe, and the cell that trains it."""
