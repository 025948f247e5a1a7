"""The tiny scale: five bases, six ways to make agents of them, and all that is measured."""
