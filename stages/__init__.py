"""Thin doors: each file is one stage of dvc.yaml, with no mathematics of its own."""
