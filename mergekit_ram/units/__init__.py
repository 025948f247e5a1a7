"""A merge cut into units of work that survive a crash: numbering, manifest, work, engines."""
