"""A module beside the cells, with variables of its own."""

calls = 0
level = 1.0


def warmed():
    """A factor that depends on the number of calls."""
    global calls
    calls += 1  # in the loss
    return 1 if calls < 1000 else 2


def cool():
    """Lower the level."""
    global level
    level *= 0.9
