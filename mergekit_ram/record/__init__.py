"""What is kept of a merge or an inspection: schema, building, reuse, findings."""
