"""The models of a merge on disk: their files, tensor names, architecture and adapters."""
