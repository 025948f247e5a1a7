"""The merges that are compared, whatever the models."""
