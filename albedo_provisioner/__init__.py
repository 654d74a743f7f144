"""Jupyter kernels on other hosts over ssh that behave like local ones and lose nothing when the link breaks."""

__version__ = "0.1.0.dev0"
