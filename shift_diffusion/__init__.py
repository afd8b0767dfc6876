"""shift-diffusion: image diffusion models whose origin can be told, months later."""

__version__ = "0.1.0"
