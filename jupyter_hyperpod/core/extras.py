"""Packages that only some features need: which extra of this package installs each of them, and which need no torch."""

from __future__ import annotations

EXTRAS = {
    **dict.fromkeys(("torch", "numpy"), "train"),
    **dict.fromkeys(("botocore", "xxhash"), "load"),
    "s3fs": "s3",
    "boto3": "aws",
    "huggingface_hub": "hub",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "optuna": "optuna",
    **dict.fromkeys(("nbclient", "matplotlib"), "demo"),
}
# what a person imports beside the standard library, and what these import, without torch
WITHOUT_TORCH = frozenset({"matplotlib", "numpy", "pandas", "scipy", "sklearn"})


def remedy(error: ModuleNotFoundError) -> str:
    """What is missing and how to install it, as a sentence; "" where it is no package of an extra."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return ""
    return f"{package} is not installed: pip install 'jupyter_hyperpod[{EXTRAS[package]}]'"
