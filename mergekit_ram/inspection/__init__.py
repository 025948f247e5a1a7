"""Looking before a merge: the walk over the models, samples, figures of the whole model."""
