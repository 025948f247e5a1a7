"""The commands, and nothing that takes long to import."""
