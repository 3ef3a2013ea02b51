"""Recipes: decoder models as data, with settings for several scales, and the cell that trains each."""
