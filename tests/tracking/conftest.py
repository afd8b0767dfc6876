from tests.mlflow_project import database, project, store  # noqa: F401
