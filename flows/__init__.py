"""When the pipeline runs: Prefect flows around DVC stages.

DVC alone decides what is stale and keeps every result; a flow only runs `dvc repro` for one stage after
the other (or side by side), watches it, ends it, and tells the truth about how it went.
"""
