"""A folder for the front of the ranks' PYTHONPATH: Python itself loads `sitecustomize` from it in every rank."""
