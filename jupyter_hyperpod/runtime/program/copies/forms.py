"""The form of a copy: the keys beside what it holds that say which kind of object it is of."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

Copy = Any
TYPE, ENUM = "\0type", "\0enum"  # beside an object's copy, the name of its class; the copy of a member of an Enum
MODULES = "\0modules"  # beside it, the plain attributes of a module and of those inside
PART = "\0part"  # beside it, where not all attributes of an object are in it
NAMED = "\0named"  # the key of the copy of a named tuple
KIND = "\0kind"  # in the copy of a dictionary: which class it is of, and the name of its default factory
TRAINING = "\0training"  # beside the copy of a module, whether it is in training mode
LABEL = "\0label"  # beside it, a number: copies of one new object have the same
# The key of a copy that stands for an object which every member has, see `origins`, and what it holds; of a new object.
ORIGIN, CONTENT, FRESH = "\0origin", "\0content", "\0fresh"
ITEMS, ITSELF = "\0items", "\0itself"  # beside it, what it holds as a container; whether its attributes are these
OBJECT = "\0object"  # the key of an object's copy, to tell it from a dictionary's
SHARED = (torch.Tensor, dict, list, set, deque)  # that new objects may share
SKIPPED = object()  # the copy of what the session carries already, and of functions, which a cell defines anew
