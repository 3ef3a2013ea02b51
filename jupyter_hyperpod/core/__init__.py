"""Types that every other package uses: specifications, events, views, errors, units. Standard library only; no I/O."""
