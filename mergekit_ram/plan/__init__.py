"""A merge before it runs: tasks in mergekit's graph, checks before the long passes, writing."""
