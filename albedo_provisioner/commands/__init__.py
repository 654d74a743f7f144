"""The commands of `jupyter albedo` that have to do with running kernels, one file each; `cli.py` has the others."""
