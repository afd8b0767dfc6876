"""The registered model as MLflow sees it: a table with prompts and seeds in, a table with PNG pictures out."""
