"""The merges that mergekit planned: what each loads, its tensors, headers and counts."""
